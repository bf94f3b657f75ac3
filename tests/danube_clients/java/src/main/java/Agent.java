import com.danubemessaging.client.Consumer;
import com.danubemessaging.client.DanubeClient;
import com.danubemessaging.client.DispatchStrategy;
import com.danubemessaging.client.Producer;
import com.danubemessaging.client.SubType;
import com.danubemessaging.client.model.StreamMessage;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.grpc.StatusRuntimeException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Danube's Java client, unmodified, doing what it is told: one JSON command a line in, one JSON
 * answer a line out, as danube_agent.py does with Danube's client for Python.
 */
public final class Agent {
    private static final Gson JSON = new Gson();
    /** With its five a consumer gives up for good when its broker is away for three seconds. */
    private static final int RETRIES = 60;

    private final DanubeClient client;
    private final Map<String, Producer> producers = new HashMap<>();
    private final Map<String, Inbox> inboxes = new HashMap<>();

    private Agent(DanubeClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (DanubeClient client = DanubeClient.builder().serviceUrl(arguments[0]).build()) {
            Agent agent = new Agent(client);
            for (String line; (line = lines.readLine()) != null; ) {
                System.out.println(agent.answer(JsonParser.parseString(line).getAsJsonObject()));
            }
        }
    }

    private JsonObject answer(JsonObject command) {
        JsonObject answer = new JsonObject();
        answer.add("number", command.get("number"));
        try {
            answer.add("result", obey(command));
        } catch (Exception error) {
            explain(error, answer);
        }
        return answer;
    }

    /** The status of the call that failed, or the name of what was thrown. */
    private static void explain(Throwable error, JsonObject answer) {
        answer.addProperty("error", error.getClass().getSimpleName());
        answer.addProperty("message", String.valueOf(error.getMessage()));
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof StatusRuntimeException refused) {
                answer.addProperty("error", refused.getStatus().getCode().name());
                answer.addProperty("message", String.valueOf(refused.getStatus().getDescription()));
            }
        }
    }

    private JsonElement obey(JsonObject command) throws InterruptedException {
        String name = command.get("name").getAsString();
        switch (command.get("do").getAsString()) {
            case "open_producer" -> openProducer(name, command);
            case "send" -> send(name, command);
            case "subscribe" -> subscribe(name, command);
            case "take" -> {
                return take(inboxes.get(name), command);
            }
            case "ack" -> {
                Inbox inbox = inboxes.get(name);
                inbox.consumer.ack(inbox.taken.get(command.get("place").getAsInt()));
            }
            case "close_consumer" -> inboxes.remove(name).consumer.close();
            case "close_producer" -> producers.remove(name).close();
            default -> throw new IllegalArgumentException("Java's client cannot " + command);
        }
        return JsonNull.INSTANCE;
    }

    private void openProducer(String name, JsonObject command) {
        boolean reliable = !command.has("reliable") || command.get("reliable").getAsBoolean();
        var builder = client.newProducer()
                .withTopic(command.get("topic").getAsString())
                .withName(name)
                .withMaxRetries(RETRIES)
                .withDispatchStrategy(reliable ? DispatchStrategy.RELIABLE : DispatchStrategy.NON_RELIABLE);
        if (command.has("partitions") && command.get("partitions").getAsInt() > 0) {
            builder.withPartitions(command.get("partitions").getAsInt());
        }
        if (command.has("subject")) {
            builder.withSchemaLatest(command.get("subject").getAsString());
        }
        Producer producer = builder.build();
        producer.create();
        producers.put(name, producer);
    }

    private void send(String name, JsonObject command) {
        byte[] payload = Base64.getDecoder().decode(command.get("payload").getAsString());
        Map<String, String> attributes = new HashMap<>();
        JsonElement given = command.get("attributes");
        if (given != null && !given.isJsonNull()) {
            given.getAsJsonObject().entrySet().forEach(one -> attributes.put(one.getKey(), one.getValue().getAsString()));
        }
        producers.get(name).send(payload, attributes);
    }

    private void subscribe(String name, JsonObject command) {
        String kind = command.has("kind") ? command.get("kind").getAsString() : "shared";
        Consumer consumer = client.newConsumer()
                .withTopic(command.get("topic").getAsString())
                .withConsumerName(name)
                .withMaxRetries(RETRIES)
                .withSubscription(command.get("subscription").getAsString())
                .withSubscriptionType(SubType.valueOf(kind.toUpperCase(Locale.ROOT)))
                .build();
        Inbox inbox = new Inbox(consumer);
        consumer.receive().subscribe(inbox);
        consumer.subscribe();
        inboxes.put(name, inbox);
    }

    /** Messages as they come; fewer than asked for only when the time is over. */
    private static JsonArray take(Inbox inbox, JsonObject command) throws InterruptedException {
        int count = command.get("count").getAsInt();
        long end = System.nanoTime() + (long) (command.get("within").getAsDouble() * 1e9);
        JsonArray taken = new JsonArray();
        while (taken.size() < count) {
            StreamMessage message = inbox.waiting.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (message == null) {
                break;
            }
            taken.add(tell(message, inbox.taken.size()));
            inbox.taken.add(message);
            if (command.get("ack").getAsBoolean()) {
                inbox.consumer.ack(message);
            }
        }
        return taken;
    }

    private static JsonObject tell(StreamMessage message, int place) {
        JsonObject told = new JsonObject();
        told.addProperty("place", place);
        told.addProperty("payload", Base64.getEncoder().encodeToString(message.payload()));
        told.addProperty("topic", message.messageId().topicName());
        told.addProperty("offset", message.messageId().topicOffset());
        told.add("key", JsonNull.INSTANCE);
        told.add("attributes", JSON.toJsonTree(message.attributes()));
        told.addProperty("producer", message.producerName());
        told.addProperty("publish_time", message.publishTime());
        return told;
    }

    /** What a consumer received: all of it, as fast as it comes. */
    private static final class Inbox implements Flow.Subscriber<StreamMessage> {
        private final Consumer consumer;
        private final BlockingQueue<StreamMessage> waiting = new LinkedBlockingQueue<>();
        private final List<StreamMessage> taken = new ArrayList<>();

        private Inbox(Consumer consumer) {
            this.consumer = consumer;
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            subscription.request(Long.MAX_VALUE);
        }

        @Override
        public void onNext(StreamMessage message) {
            waiting.add(message);
        }

        @Override
        public void onError(Throwable error) {
            error.printStackTrace();
        }

        @Override
        public void onComplete() {
        }
    }
}
