module danubius/danube-agent

go 1.24.0

require github.com/danube-messaging/danube-go v0.7.0
