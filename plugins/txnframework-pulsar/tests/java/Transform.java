import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Moves messages from one topic to another in transactions, whatever fails, until it is killed; argument: the URL. */
public class Transform {
    static final int MESSAGES_MAX = 10;

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true)
            .operationTimeout(20, TimeUnit.SECONDS).build();
        Producer<byte[]> out = client.newProducer().topic("persistent://public/default/out")
            .sendTimeout(0, TimeUnit.SECONDS).enableBatching(false).create();
        Consumer<byte[]> in = client.newConsumer().topic("persistent://public/default/in").subscriptionName("transform")
            .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(10, TimeUnit.MILLISECONDS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        while (true) {
            List<Message<byte[]>> messages = new ArrayList<>();
            Message<byte[]> next = in.receive();
            while (next != null) {
                messages.add(next);
                next = messages.size() < MESSAGES_MAX ? in.receive(10, TimeUnit.MILLISECONDS) : null;
            }
            Transaction txn = null;
            try {
                txn = client.newTransaction().withTransactionTimeout(30, TimeUnit.SECONDS).build()
                    .get(30, TimeUnit.SECONDS);
                List<CompletableFuture<MessageId>> sends = new ArrayList<>();
                for (Message<byte[]> message : messages) {
                    String value = new String(message.getData()) + "!";
                    sends.add(out.newMessage(txn).value(value.getBytes()).sendAsync());
                }
                for (CompletableFuture<MessageId> send : sends) {
                    send.get(30, TimeUnit.SECONDS);
                }
                for (Message<byte[]> message : messages) {
                    in.acknowledgeAsync(message.getMessageId(), txn).get(30, TimeUnit.SECONDS);
                }
                txn.commit().get(30, TimeUnit.SECONDS);
                System.out.println("committed " + messages.size());
            } catch (Exception error) {
                System.out.println("failed " + error);
                if (txn != null) {
                    try {
                        txn.abort().get(10, TimeUnit.SECONDS);
                    } catch (Exception ignored) {
                        // It is aborted by its timeout, or it was committed.
                    }
                }
                for (Message<byte[]> message : messages) {
                    in.negativeAcknowledge(message);
                }
            }
        }
    }
}
