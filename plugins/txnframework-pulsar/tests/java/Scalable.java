import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** What Pulsar's client 5 for Java does at a gateway, with transactions; the argument is the URL. */
public class Scalable {
    static final String IN = "topic://public/default/in";
    static final String OUT = "topic://public/default/out";
    static final Duration PATIENCE = Duration.ofSeconds(60);
    static final Duration NOTHING = Duration.ofMillis(300);

    public static void main(String[] arguments) {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
            .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofMinutes(1)).build()).build()) {
            run(client);
            System.out.println("done");
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(0); // the threads of a client that failed would go on
    }

    static void run(PulsarClient client) throws Exception {
        Producer<String> in = client.newProducer(Schema.string()).topic(IN).create();
        Producer<String> out = client.newProducer(Schema.string()).topic(OUT).create();
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            sent.add("m" + number);
            in.newMessage().key("k" + number % 3).value("m" + number).send();
        }

        // A transaction that is aborted, and one that is committed.
        QueueConsumer<String> queue = client.newQueueConsumer(Schema.string()).topic(IN).subscriptionName("queue")
            .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        QueueConsumer<String> results = client.newQueueConsumer(Schema.string()).topic(OUT).subscriptionName("results")
            .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        Transaction aborted = client.newTransaction();
        out.newMessage().transaction(aborted).value("lost").send();
        queue.acknowledge(next(queue.receive(PATIENCE)).id(), aborted);
        aborted.abort();
        Transaction committed = client.newTransaction();
        for (int number = 0; number < 5; number++) {
            Message<String> message = next(queue.receive(PATIENCE));
            out.newMessage().transaction(committed).value(message.value()).send();
            queue.acknowledge(message.id(), committed);
        }
        same(null, results.receive(NOTHING), "a message of an open transaction");
        committed.commit();
        for (int number = 0; number < 5; number++) {
            Message<String> message = next(results.receive(PATIENCE));
            same(true, sent.contains(message.value()), "a message of the committed transaction");
            results.acknowledge(message.id());
        }
        same(null, results.receive(NOTHING), "a message of the aborted transaction");
        queue.close();

        // A stream consumer gets everything in order, and the next one goes on where it acknowledged.
        StreamConsumer<String> stream = stream(client);
        StreamConsumer<String> standby = stream(client);
        Message<String> tenth = null;
        for (int number = 0; number < 10; number++) {
            tenth = next(stream.receive(PATIENCE));
            same(sent.get(number), tenth.value(), "message " + number);
        }
        stream.acknowledgeCumulative(tenth.id());
        same(null, standby.receive(NOTHING), "a message of a consumer that stands by");
        stream.close();
        for (int number = 10; number < 20; number++) {
            same(sent.get(number), next(standby.receive(PATIENCE)).value(), "message " + number);
        }
        standby.close();

        // A checkpoint consumer reads from where it says.
        CheckpointConsumer<String> reader = client.newCheckpointConsumer(Schema.string()).topic(IN)
            .startPosition(Checkpoint.earliest()).create();
        for (int number = 0; number < 15; number++) {
            same(sent.get(number), next(reader.receive(PATIENCE)).value(), "message " + number);
        }
        Checkpoint checkpoint = reader.checkpoint();
        reader.close();
        reader = client.newCheckpointConsumer(Schema.string()).topic(IN).startPosition(checkpoint).create();
        for (int number = 15; number < 20; number++) {
            same(sent.get(number), next(reader.receive(PATIENCE)).value(), "message " + number);
        }
        reader.close();
    }

    static StreamConsumer<String> stream(PulsarClient client) throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(IN).subscriptionName("stream")
            .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    static Message<String> next(Message<String> message) {
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    static void same(Object expected, Object found, String what) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError(what + ": " + found + " is not " + expected);
        }
    }
}
