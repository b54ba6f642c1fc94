import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.policies.data.TransactionMetadata;

/** What Pulsar's admin client for Java does at a gateway; the arguments are the URLs of its REST API and of itself. */
public class Administration {
    static final String TOPIC = "persistent://public/default/orders";

    public static void main(String[] arguments) {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build()) {
            run(admin, arguments[0], arguments[1]);
            System.out.println("done");
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(0); // the threads of a client that failed would go on
    }

    static void run(PulsarAdmin admin, String http, String url) throws Exception {
        admin.brokers().healthcheck();
        equal(admin.clusters().getClusters().contains("standalone"), true);
        admin.topics().createNonPartitionedTopic(TOPIC);
        try {
            admin.topics().createNonPartitionedTopic(TOPIC);
            throw new AssertionError("a topic was created twice");
        } catch (PulsarAdminException.ConflictException expected) {
            // it exists
        }
        equal(admin.topics().getList("public/default").contains(TOPIC), true);
        equal(admin.topics().getPartitionedTopicList("public/default"), List.of());
        equal(admin.topics().getPartitionedTopicMetadata(TOPIC).partitions, 0);
        equal(admin.tenants().getTenants().contains("public"), true);
        equal(admin.namespaces().getNamespaces("public").contains("public/default"), true);
        equal(admin.namespaces().getTopics("public/default").contains(TOPIC), true);

        // A client that finds topics by HTTP.
        PulsarClient client = PulsarClient.builder().serviceUrl(http).build();
        Producer<byte[]> producer = client.newProducer().topic(TOPIC).create();
        MessageId second = null;
        for (int number = 0; number < 5; number++) {
            MessageId sent = producer.send(("m" + number).getBytes());
            second = number == 1 ? sent : second;
        }
        admin.topics().createSubscription(TOPIC, "all", MessageId.earliest);
        admin.topics().createSubscription(TOPIC, "new", MessageId.latest);
        try {
            admin.topics().createSubscription(TOPIC, "new", MessageId.latest);
            throw new AssertionError("a subscription was created twice");
        } catch (PulsarAdminException.ConflictException expected) {
            // it exists
        }
        admin.topics().createSubscription(TOPIC, "some", second);
        equal(admin.topics().getSubscriptions(TOPIC), List.of("all", "new", "some"));
        equal(backlogs(admin), List.of(5L, 0L, 4L));
        equal(admin.topics().getStats(TOPIC).getMsgInCounter(), 5L);
        admin.topics().skipAllMessages(TOPIC, "all");
        admin.topics().resetCursor(TOPIC, "new", 0);
        admin.topics().resetCursor(TOPIC, "some", MessageId.earliest);
        equal(backlogs(admin), List.of(0L, 5L, 5L));
        admin.topics().resetCursor(TOPIC, "all", second);
        equal(backlogs(admin), List.of(4L, 5L, 5L));
        admin.topics().deleteSubscription(TOPIC, "some");
        try {
            admin.topics().deleteSubscription(TOPIC, "some");
            throw new AssertionError("a subscription was deleted twice");
        } catch (PulsarAdminException.NotFoundException expected) {
            // it is gone
        }
        client.close();

        client = PulsarClient.builder().serviceUrl(http).enableTransaction(true).build();
        client.newTransaction().build().get().abort().get();
        client.close();
        client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
        Transaction txn = client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().get();
        client.newProducer().topic(TOPIC).sendTimeout(0, TimeUnit.SECONDS).create().newMessage(txn)
            .value("m".getBytes()).send();
        Map<String, TransactionMetadata> slow = admin.transactions().getSlowTransactions(0, TimeUnit.SECONDS);
        equal(slow.keySet().stream().toList(), List.of(txn.getTxnID().toString()));
        TransactionMetadata found = admin.transactions().getTransactionMetadata(txn.getTxnID());
        equal(found.status, "OPEN");
        equal(found.producedPartitions.keySet().stream().toList(), List.of(TOPIC));
        equal(admin.transactions().getCoordinatorStats().get(0).ongoingTxnSize, 1L);
        equal(admin.transactions().listTransactionCoordinators().size(), 1);
        txn.commit().get();
        equal(admin.topics().getStats(TOPIC).getMsgInCounter(), 6L);
        client.close();

        String named = "persistent://public/default/a b+c\u00e9";
        admin.topics().createNonPartitionedTopic(named);
        for (String subscription : List.of("one/two", "a b+c", "100%", "\u00e9")) {
            admin.topics().createSubscription(named, subscription, MessageId.latest);
            equal(admin.topics().getSubscriptions(named), List.of(subscription));
            admin.topics().deleteSubscription(named, subscription);
        }
        admin.topics().delete(named);

        admin.topics().delete(TOPIC, true);
        equal(admin.topics().getList("public/default").contains(TOPIC), false);
    }

    static List<Long> backlogs(PulsarAdmin admin) throws Exception {
        return admin.topics().getStats(TOPIC).getSubscriptions().entrySet().stream()
            .sorted(Map.Entry.comparingByKey()).map(one -> one.getValue().getMsgBacklog()).toList();
    }

    static void equal(Object found, Object expected) {
        if (!String.valueOf(found).equals(String.valueOf(expected))) {
            throw new AssertionError(found + " is not " + expected);
        }
    }
}
