// Danube's Go client, unmodified, doing what it is told: one JSON command a line in, one JSON answer a
// line out, as danube_agent.py does with Danube's client for Python.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	danube "github.com/danube-messaging/danube-go"
	"github.com/danube-messaging/danube-go/proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// retries of a consumer: with its five it gives up for good when its broker is away for three seconds.
const retries = 60

type command struct {
	Number       int               `json:"number"`
	Do           string            `json:"do"`
	Name         string            `json:"name"`
	Topic        string            `json:"topic"`
	Reliable     *bool             `json:"reliable"`
	Partitions   int32             `json:"partitions"`
	Subject      string            `json:"subject"`
	Payload      []byte            `json:"payload"`
	Attributes   map[string]string `json:"attributes"`
	Key          *string           `json:"key"`
	Subscription string            `json:"subscription"`
	Kind         string            `json:"kind"`
	Filters      []string          `json:"filters"`
	Count        int               `json:"count"`
	Within       float64           `json:"within"`
	Ack          bool              `json:"ack"`
	Place        int               `json:"place"`
	DelayMs      *uint64           `json:"delay_ms"`
	Reason       *string           `json:"reason"`
}

type message struct {
	Place       int               `json:"place"`
	Payload     []byte            `json:"payload"`
	Topic       string            `json:"topic"`
	Offset      uint64            `json:"offset"`
	Key         *string           `json:"key"`
	Attributes  map[string]string `json:"attributes"`
	Producer    string            `json:"producer"`
	PublishTime uint64            `json:"publish_time"`
}

// inbox is a consumer with what it received and what was taken of that.
type inbox struct {
	consumer *danube.Consumer
	waiting  chan *proto.StreamMessage
	taken    []*proto.StreamMessage
}

type agent struct {
	client    *danube.DanubeClient
	producers map[string]*danube.Producer
	inboxes   map[string]*inbox
}

var kinds = map[string]danube.SubType{
	"exclusive":  danube.Exclusive,
	"shared":     danube.Shared,
	"failover":   danube.FailOver,
	"key_shared": danube.KeyShared,
}

func (a *agent) openProducer(ctx context.Context, c command) error {
	strategy := danube.NewReliableDispatchStrategy()
	if c.Reliable != nil && !*c.Reliable {
		strategy = danube.NewConfigDispatchStrategy()
	}
	builder := a.client.NewProducer().WithTopic(c.Topic).WithName(c.Name).WithDispatchStrategy(strategy)
	if c.Partitions > 0 {
		builder = builder.WithPartitions(c.Partitions)
	}
	if c.Subject != "" {
		builder = builder.WithSchemaSubject(c.Subject)
	}
	producer, err := builder.Build()
	if err != nil {
		return err
	}
	a.producers[c.Name] = producer
	return producer.Create(ctx)
}

func (a *agent) send(ctx context.Context, c command) error {
	var err error
	if c.Key == nil {
		_, err = a.producers[c.Name].Send(ctx, c.Payload, c.Attributes)
	} else {
		_, err = a.producers[c.Name].SendWithKey(ctx, c.Payload, c.Attributes, *c.Key)
	}
	return err
}

func (a *agent) subscribe(ctx context.Context, c command) error {
	kind, known := kinds[c.Kind]
	if !known {
		kind = danube.Shared
	}
	consumer, err := a.client.NewConsumer().WithTopic(c.Topic).WithConsumerName(c.Name).
		WithSubscription(c.Subscription).WithSubscriptionType(kind).WithKeyFilters(c.Filters).
		WithOptions(danube.ConsumerOptions{MaxRetries: retries}).Build()
	if err != nil {
		return err
	}
	if err := consumer.Subscribe(ctx); err != nil {
		return err
	}
	waiting, err := consumer.Receive(ctx)
	a.inboxes[c.Name] = &inbox{consumer: consumer, waiting: waiting}
	return err
}

// take returns messages as they come; fewer than asked for only when the time is over.
func (in *inbox) take(ctx context.Context, c command) ([]message, error) {
	taken := []message{}
	end := time.After(time.Duration(c.Within * float64(time.Second)))
	for len(taken) < c.Count {
		select {
		case <-end:
			return taken, nil
		case got, open := <-in.waiting:
			if !open {
				return nil, fmt.Errorf("the client closed its channel")
			}
			taken = append(taken, tell(got, len(in.taken)))
			in.taken = append(in.taken, got)
			if !c.Ack {
				continue
			}
			if _, err := in.consumer.Ack(ctx, got); err != nil {
				return nil, err
			}
		}
	}
	return taken, nil
}

func tell(got *proto.StreamMessage, place int) message {
	attributes := got.GetAttributes()
	if attributes == nil {
		attributes = map[string]string{}
	}
	return message{
		Place:       place,
		Payload:     got.GetPayload(),
		Topic:       got.GetMsgId().GetTopicName(),
		Offset:      got.GetMsgId().GetTopicOffset(),
		Key:         got.RoutingKey,
		Attributes:  attributes,
		Producer:    got.GetProducerName(),
		PublishTime: got.GetPublishTime(),
	}
}

func (a *agent) obey(ctx context.Context, c command) (any, error) {
	switch c.Do {
	case "open_producer":
		return nil, a.openProducer(ctx, c)
	case "send":
		return nil, a.send(ctx, c)
	case "subscribe":
		return nil, a.subscribe(ctx, c)
	case "take":
		return a.inboxes[c.Name].take(ctx, c)
	case "ack":
		in := a.inboxes[c.Name]
		_, err := in.consumer.Ack(ctx, in.taken[c.Place])
		return nil, err
	case "nack":
		in := a.inboxes[c.Name]
		_, err := in.consumer.Nack(ctx, in.taken[c.Place], c.DelayMs, c.Reason)
		return nil, err
	case "close_consumer":
		a.inboxes[c.Name].consumer.Close()
		delete(a.inboxes, c.Name)
		return nil, nil
	case "close_producer":
		delete(a.producers, c.Name) // this client's producers have nothing to close
		return nil, nil
	}
	return nil, fmt.Errorf("Go's client cannot %s", c.Do)
}

// explain names the status of the call that failed as gRPC's constants are called everywhere else.
func explain(err error) map[string]any {
	refused, isStatus := status.FromError(err)
	if !isStatus {
		return map[string]any{"error": "error", "message": err.Error()}
	}
	words := map[codes.Code]string{
		codes.InvalidArgument:    "INVALID_ARGUMENT",
		codes.NotFound:           "NOT_FOUND",
		codes.AlreadyExists:      "ALREADY_EXISTS",
		codes.PermissionDenied:   "PERMISSION_DENIED",
		codes.FailedPrecondition: "FAILED_PRECONDITION",
		codes.Unavailable:        "UNAVAILABLE",
	}
	word, known := words[refused.Code()]
	if !known {
		word = strings.ToUpper(refused.Code().String())
	}
	return map[string]any{"error": word, "message": refused.Message()}
}

func main() {
	client, err := danube.NewClient().ServiceURL(os.Args[1]).Build()
	if err != nil {
		panic(err)
	}
	a := agent{client, map[string]*danube.Producer{}, map[string]*inbox{}}
	lines, answers := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		result, failed := a.obey(context.Background(), c)
		answer := map[string]any{"result": result}
		if failed != nil {
			answer = explain(failed)
		}
		answer["number"] = c.Number
		if err := answers.Encode(answer); err != nil {
			return
		}
	}
}
