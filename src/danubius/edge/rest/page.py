"""A page for people that lists the endpoints; plain HTML, nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from danubius.edge.rest.openapi import tag_of, title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.edge.rest.endpoint import Endpoint

_BASE: Final = re.compile(r"https?://[\w.:\[\]-]+", re.ASCII)
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Danubius over HTTP</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733 }
table { border-collapse: collapse; width: 100% } td { padding: .2rem .6rem .2rem 0; vertical-align: top }
td:first-child { width: 4.5rem; font-weight: 600 } code { font-size: .9em } h2 { margin-top: 2rem }
.fields { color: #5a6b7d; font-size: .9em }
</style></head><body>
<h1>Danubius over HTTP</h1>
<p>Machines read <a href="/openapi.json">/openapi.json</a>. Errors are problems (RFC 9457) with a stable code, a name
and a sentence that says what would be right.</p>
<pre><code>curl -X POST -H 'content-type: application/json' -d '{"messages": [{"text": "hello"}]}' \\
  BASE/api/v1/topics/default/greetings/messages
curl 'BASE/api/v1/topics/default/greetings/messages?start=earliest'</code></pre>
"""


def render(endpoints: Sequence[Endpoint]) -> str:
    """The page; `addressed` makes it one that can be pasted from."""
    parts = [_HEAD]
    for tag in dict.fromkeys(map(tag_of, endpoints)):
        parts.append(f"<h2>{tag.capitalize()}</h2><table>")
        parts += [_row(endpoint) for endpoint in endpoints if tag_of(endpoint) == tag]
        parts.append("</table>")
    parts.append("</body></html>\n")
    return "".join(parts)


def addressed(page: str, base: str) -> str:
    """The page for whoever reached the broker under this address, which a shell and a browser must take for one."""
    base = base if _BASE.fullmatch(base) else "http://127.0.0.1:6652"
    return page.replace("BASE/", html.escape(base) + "/")


def _row(endpoint: Endpoint) -> str:
    query = endpoint.in_query.__struct_fields__
    body = endpoint.body.__struct_fields__ if endpoint.body is not None else ()
    fields = [f"?{', '.join(query)}" if query else "", f"{{{', '.join(body)}}}" if body else ""]
    text = html.escape(" ".join(field for field in fields if field))
    return (
        f"<tr><td>{endpoint.method}</td><td><code>{html.escape(endpoint.path)}</code>"
        f'<br>{html.escape(title_of(endpoint))} <span class="fields">{text}</span></td></tr>\n'
    )
