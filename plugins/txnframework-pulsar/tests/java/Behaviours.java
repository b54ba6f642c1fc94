import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;

/** What Pulsar's client for Java does at a gateway, with transactions; the argument is the URL. */
public class Behaviours {
    static final String IN = "persistent://public/default/in";
    static final String OUT = "persistent://public/default/out";
    static PulsarClient client;

    public static void main(String[] arguments) {
        try {
            run(arguments[0]);
            System.out.println("done");
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(0); // the threads of a client that failed would go on
    }

    static void run(String url) throws Exception {
        client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
        Producer<byte[]> in = client.newProducer().topic(IN).create();
        Producer<byte[]> out = client.newProducer().topic(OUT).sendTimeout(0, TimeUnit.SECONDS).create();
        for (int number = 0; number < 20; number++) {
            in.newMessage().key("k" + number % 3).value(("m" + number).getBytes()).sendAsync();
        }
        in.flush();
        Consumer<byte[]> source = subscribe(IN, SubscriptionType.Shared);
        Consumer<byte[]> results = subscribe(OUT, SubscriptionType.Exclusive);

        // A commit: nothing before it, everything after it.
        Transaction committed = begin(60_000);
        move(source, out, committed);
        same(null, results.receive(300, TimeUnit.MILLISECONDS), "a message before the commit");
        committed.commit().get();
        for (int number = 0; number < 10; number++) {
            same("m" + number, text(next(results)), "messages in order");
        }

        // An abort: nothing of it, and the messages of single batches come again, one by one.
        Transaction aborted = begin(60_000);
        move(source, out, aborted);
        aborted.abort().get();
        Set<String> again = new TreeSet<>();
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = next(source);
            again.add(text(message) + ":" + message.getRedeliveryCount());
            source.acknowledge(message);
        }
        Set<String> expected = new TreeSet<>();
        for (int number = 10; number < 20; number++) {
            expected.add("m" + number + ":1");
        }
        same(expected, again, "messages after an abort");
        same(null, results.receive(300, TimeUnit.MILLISECONDS), "a message of an aborted transaction");
        fails(TransactionCoordinatorClientException.InvalidTxnStatusException.class, () -> aborted.commit().get());

        // Two transactions, one message.
        in.send("c".getBytes());
        Message<byte[]> wanted = next(source);
        Transaction first = begin(60_000);
        Transaction second = begin(60_000);
        source.acknowledgeAsync(wanted.getMessageId(), first).get();
        fails(
            PulsarClientException.TransactionConflictException.class,
            () -> source.acknowledgeAsync(wanted.getMessageId(), second).get());
        first.commit().get();
        fails(PulsarClientException.TransactionHasOperationFailedException.class, () -> second.commit().get());

        // Cumulatively.
        Consumer<byte[]> ordered = subscribe(IN, SubscriptionType.Failover);
        MessageId last = null;
        for (int number = 0; number < 21; number++) {
            last = next(ordered).getMessageId();
        }
        Transaction cumulative = begin(60_000);
        ordered.acknowledgeCumulativeAsync(last, cumulative).get();
        cumulative.commit().get();
        ordered.redeliverUnacknowledgedMessages();
        same(null, ordered.receive(300, TimeUnit.MILLISECONDS), "a message that a transaction acknowledged");

        Reader<byte[]> reader = client.newReader().topic(IN).startMessageId(MessageId.earliest).create();
        int count = 0;
        while (reader.hasMessageAvailable()) {
            reader.readNext();
            count++;
        }
        same(21, count, "the number of messages");
        client.close();
    }

    static Transaction begin(long timeoutMs) throws Exception {
        return client.newTransaction().withTransactionTimeout(timeoutMs, TimeUnit.MILLISECONDS).build().get();
    }

    static void move(Consumer<byte[]> source, Producer<byte[]> out, Transaction txn) throws Exception {
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = next(source);
            out.newMessage(txn).value(message.getData()).sendAsync();
            source.acknowledgeAsync(message.getMessageId(), txn).get();
        }
    }

    static Consumer<byte[]> subscribe(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s-" + type).subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData());
    }

    static void same(Object expected, Object found, String what) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    interface Work {
        void run() throws Exception;
    }

    static void fails(Class<?> kind, Work work) throws Exception {
        try {
            work.run();
        } catch (ExecutionException error) {
            if (kind.isInstance(error.getCause())) {
                return;
            }
            throw error;
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }
}
