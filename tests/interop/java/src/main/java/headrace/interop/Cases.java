package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What must hold between the Java client and the broker, by name. */
final class Cases {
    private static final int MEBIBYTE = 1024 * 1024;
    private static final long RECENTLY = (System.currentTimeMillis() / 1000 - 3600) * 1000;

    static Map<String, Main.Case> all() {
        Map<String, Main.Case> cases = new TreeMap<>();
        cases.put("produce_and_consume", Cases::produceAndConsume);
        cases.put("nulls_and_headers", Cases::nullsAndHeaders);
        cases.put("acknowledgements", Cases::acknowledgements);
        cases.put("idempotent_producer", Cases::idempotentProducer);
        cases.put("a_mebibyte", Cases::aMebibyte);
        cases.put("offsets_by_time", Cases::offsetsByTime);
        cases.put("group_goes_on", Cases::groupGoesOn);
        cases.put("group_offsets", Cases::groupOffsets);
        Consoles.addTo(cases);
        ConsumerGroups.addTo(cases);
        Migration.addTo(cases);
        Transactions.addTo(cases);
        cases.put("topic_life", Cases::topicLife);
        cases.put("bad_topics", Cases::badTopics);
        cases.put("created_once", Cases::createdOnce);
        cases.put("dry_run", Cases::dryRun);
        cases.put("cluster", Cases::cluster);
        cases.put("reads_in_its_rack", Cases::readsInItsRack);
        return cases;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int partition, int n) {
        byte[] value = ("value-" + n + "-").repeat(20).getBytes(UTF_8);
        return new ProducerRecord<>(topic, partition, RECENTLY + n * 1000L, ("key-" + n).getBytes(UTF_8), value);
    }

    private static List<ProducerRecord<byte[], byte[]>> records(String topic, int partition, int count) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            records.add(record(topic, partition, n));
        }
        return records;
    }

    private static void produceAndConsume(Broker broker, String codec) throws Exception {
        String topic = broker.topic(Map.of());
        var sent = records(topic, 0, 500);
        var offsets = broker.produce(sent, Map.of("compression.type", codec, "acks", "all"));
        Check.equal(499L, offsets.get(499), "last offset");
        broker.holds(new TopicPartition(topic, 0), sent);
    }

    private static void nullsAndHeaders(Broker broker, String codec) throws Exception {
        String topic = broker.topic(Map.of());
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        byte[][][] pairs = {{null, {1}}, {{1}, null}, {null, null}, {{}, {}}};
        for (byte[][] pair : pairs) {
            sent.add(new ProducerRecord<>(topic, 1, RECENTLY + sent.size(), pair[0], pair[1]));
        }
        sent.get(0).headers().add("source", "tests".getBytes(UTF_8)).add("empty", new byte[0]).add("null", null);
        sent.get(1).headers().add("twice", new byte[] {1}).add("twice", new byte[] {2}).add("Grüße", new byte[] {3});
        broker.produce(sent, Map.of("compression.type", codec));
        broker.holds(new TopicPartition(topic, 1), sent);
    }

    private static void acknowledgements(Broker broker, String acks) throws Exception {
        String topic = broker.topic(Map.of());
        var sent = records(topic, 2, 50);
        broker.produce(sent, Map.of("acks", acks, "enable.idempotence", false));
        broker.holds(new TopicPartition(topic, 2), sent);
    }

    private static void idempotentProducer(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        for (int n = 0; n < 2000; n++) {
            for (int partition = 0; partition < 3; partition++) {
                sent.add(record(topic, partition, n));
            }
        }
        broker.produce(sent, Map.of("enable.idempotence", true, "acks", "all", "batch.size", 2048));
        for (int partition = 0; partition < 3; partition++) {
            broker.holds(new TopicPartition(topic, partition), records(topic, partition, 2000));
        }
    }

    private static void aMebibyte(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of("max.message.bytes", String.valueOf(2 * MEBIBYTE)));
        var sent = List.of(new ProducerRecord<>(topic, 0, RECENTLY, "k".getBytes(UTF_8), new byte[MEBIBYTE]));
        broker.produce(sent, Map.of("max.request.size", 4 * MEBIBYTE));
        broker.holds(new TopicPartition(topic, 0), sent);
    }

    private static void offsetsByTime(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        broker.produce(records(topic, 0, 10), Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        Check.equal(0L, offset(broker, partition, OffsetSpec.earliest()).offset(), "earliest");
        Check.equal(10L, offset(broker, partition, OffsetSpec.latest()).offset(), "latest");
        ListOffsetsResultInfo highest = offset(broker, partition, OffsetSpec.maxTimestamp());
        Check.equal(9L, highest.offset(), "of the highest timestamp");
        Check.equal(RECENTLY + 9000, highest.timestamp(), "the highest timestamp");
        Check.equal(4L, offset(broker, partition, OffsetSpec.forTimestamp(RECENTLY + 4000)).offset(), "at");
        Check.equal(5L, offset(broker, partition, OffsetSpec.forTimestamp(RECENTLY + 4001)).offset(), "after");
        Check.equal(-1L, offset(broker, partition, OffsetSpec.forTimestamp(RECENTLY + 9001)).offset(), "past the end");
        try (Consumer<byte[], byte[]> reader = broker.consumer(Map.of())) {
            Check.equal(7L, reader.offsetsForTimes(Map.of(partition, RECENTLY + 7000)).get(partition).offset(), "time");
            Check.equal(Map.of(partition, 10L), reader.endOffsets(List.of(partition)), "end offsets");
            Check.equal(Map.of(partition, 0L), reader.beginningOffsets(List.of(partition)), "beginning offsets");
        }
    }

    private static ListOffsetsResultInfo offset(Broker broker, TopicPartition partition, OffsetSpec at)
            throws Exception {
        return broker.admin.listOffsets(Map.of(partition, at)).partitionResult(partition).get();
    }

    private static void groupGoesOn(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        for (int partition = 0; partition < 3; partition++) {
            broker.produce(records(topic, partition, 20), Map.of());
        }
        String group = Broker.name("group");
        Set<String> read = new HashSet<>(readAsMember(broker, topic, group, 25));
        Check.equal(25, read.size(), "records of the first member");
        read.addAll(readAsMember(broker, topic, group, 35));
        Check.equal(60, read.size(), "records of both members");
    }

    private static List<String> readAsMember(Broker broker, String topic, String group, int count) {
        List<String> read = new ArrayList<>();
        try (Consumer<byte[], byte[]> member = broker.consumer(Map.of("group.id", group, "max.poll.records", 5))) {
            member.subscribe(List.of(topic));
            while (read.size() < count) {
                for (ConsumerRecord<byte[], byte[]> found : Broker.take(member, 1)) {
                    read.add(found.partition() + "@" + found.offset());
                }
                member.commitSync();
            }
        }
        return read;
    }

    private static void groupOffsets(Broker broker, String argument) throws Exception {
        TopicPartition partition = new TopicPartition(broker.topic(Map.of()), 1);
        String group = Broker.name("group");
        try (Consumer<byte[], byte[]> member = broker.consumer(Map.of("group.id", group))) {
            member.assign(List.of(partition));
            Check.equal(null, member.committed(Set.of(partition)).get(partition), "committed before");
            member.commitSync(Map.of(partition, new OffsetAndMetadata(7, "note")));
            OffsetAndMetadata found = member.committed(Set.of(partition)).get(partition);
            Check.equal(7L, found.offset(), "committed");
            Check.equal("note", found.metadata(), "its metadata");
        }
        var listed = broker.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Check.equal(7L, listed.get(partition).offset(), "as an administrator sees it");
    }

    private static void topicLife(Broker broker, String argument) throws Exception {
        String topic = Broker.name("life");
        var created = broker.admin.createTopics(
                List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"))));
        Check.equal(2, created.numPartitions(topic).get(), "partitions, as created");
        Check.equal("3600000", created.config(topic).get().get("retention.ms").value(), "config, as created");
        Check.equal(created.topicId(topic).get(), describe(broker, topic).topicId(), "topic id");

        broker.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        Check.equal(5, describe(broker, topic).partitions().size(), "partitions");

        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Check.equal(false, config(broker, resource).get("retention.ms").isDefault(), "retention.ms is default");
        Check.equal(true, config(broker, resource).get("segment.bytes").isDefault(), "segment.bytes is default");
        var set = new AlterConfigOp(new ConfigEntry("segment.bytes", "1048576"), AlterConfigOp.OpType.SET);
        var drop = new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE);
        broker.admin.incrementalAlterConfigs(Map.of(resource, List.of(set, drop))).all().get();
        Check.equal("1048576", config(broker, resource).get("segment.bytes").value(), "segment.bytes");
        Check.equal("604800000", config(broker, resource).get("retention.ms").value(), "retention.ms");

        broker.admin.deleteTopics(List.of(topic)).all().get();
        Check.equal(false, broker.admin.listTopics().names().get().contains(topic), "listed after deletion");
    }

    private static TopicDescription describe(Broker broker, String topic) throws Exception {
        return broker.admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private static Config config(Broker broker, ConfigResource resource) throws Exception {
        return broker.admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private static void badTopics(Broker broker, String argument) throws Exception {
        String name = Broker.name("bad");
        refused(broker, InvalidTopicException.class, new NewTopic("bad name!", 1, (short) 1));
        refused(broker, InvalidTopicException.class, new NewTopic("n".repeat(250), 1, (short) 1));
        refused(broker, InvalidPartitionsException.class, new NewTopic(name, 0, (short) 1));
        refused(broker, InvalidReplicationFactorException.class, new NewTopic(name, 1, (short) 7));
        refused(broker, InvalidReplicaAssignmentException.class, new NewTopic(name, Map.of(0, List.of(99))));
        var bad = new NewTopic(name, 1, (short) 1).configs(Map.of("retention.ms", "soon"));
        refused(broker, InvalidConfigurationException.class, bad);
        Check.equal(false, broker.admin.listTopics().names().get().contains(name), "listed");
    }

    private static void refused(Broker broker, Class<? extends Exception> error, NewTopic topic) throws Exception {
        Check.refused(error, broker.admin.createTopics(List.of(topic)).all());
    }

    private static void createdOnce(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        refused(broker, TopicExistsException.class, new NewTopic(topic, 1, (short) 1));
        Check.refused(
                UnknownTopicOrPartitionException.class,
                broker.admin.deleteTopics(List.of("no-such-topic")).all());
        Check.refused(
                InvalidPartitionsException.class,
                broker.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all());
    }

    private static void dryRun(Broker broker, String argument) throws Exception {
        String topic = Broker.name("dry");
        var options = new CreateTopicsOptions().validateOnly(true);
        broker.admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1)), options).all().get();
        Check.equal(false, broker.admin.listTopics().names().get().contains(topic), "listed");
    }

    /** "TOPIC RACK FOLLOWER COUNT BYTES": so many records come from that replica, and next to nothing from others. */
    private static void readsInItsRack(Broker broker, String argument) throws Exception {
        String[] words = argument.split(" ");
        int count = Integer.parseInt(words[3]);
        Map<String, Object> options = Map.of("client.rack", words[1], "max.partition.fetch.bytes", 16 * 1024);
        try (Consumer<byte[], byte[]> reader = broker.consumer(options)) {
            TopicPartition partition = new TopicPartition(words[0], 0);
            reader.assign(List.of(partition));
            var found = Broker.take(reader, count);
            for (int n = 0; n < count; n++) {
                Check.equal((long) n, found.get(n).offset(), "offset");
            }
            double wanted = count * Double.parseDouble(words[4]);
            double received = received(reader, "node-" + words[2]);
            Check.that(received > 0.9 * wanted, "from the follower came " + received + " of " + wanted + " bytes");
        }
    }

    /** Bytes that a consumer has had from one node. */
    static double received(Consumer<byte[], byte[]> reader, String node) {
        double bytes = 0;
        for (var metric : reader.metrics().values()) {
            boolean isOfNode = node.equals(metric.metricName().tags().get("node-id"));
            if (isOfNode && metric.metricName().name().equals("incoming-byte-total")) {
                bytes += (Double) metric.metricValue();
            }
        }
        return bytes;
    }

    private static void cluster(Broker broker, String argument) throws Exception {
        var described = broker.admin.describeCluster();
        Check.equal(1, described.nodes().get().size(), "nodes");
        var node = described.nodes().get().iterator().next();
        Check.equal(broker.bootstrap, node.host() + ":" + node.port(), "address");
        Check.that(!described.clusterId().get().isEmpty(), "no cluster id");
        Check.equal(node.id(), described.controller().get().id(), "controller");
    }
}
