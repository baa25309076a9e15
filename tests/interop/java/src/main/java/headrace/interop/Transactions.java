package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions of a client that speaks the newest protocol: its epoch rises with each transaction (KIP-890). */
final class Transactions {
    private static final int PARTITIONS = 3;

    static void addTo(Map<String, Main.Case> cases) {
        cases.put("transactions", Transactions::commitsAndAborts);
        cases.put("transactional_copy", Transactions::copy);
        cases.put("transactional_fencing", Transactions::fencing);
        cases.put("digest", Transactions::digest);
    }

    private static Producer<byte[], byte[]> producer(Broker broker, String id) {
        Producer<byte[], byte[]> made = broker.producer(Map.of("transactional.id", id, "linger.ms", 0));
        made.initTransactions();
        return made;
    }

    /** Waits until the markers of the id's last transaction are written: a commit is answered before that. */
    private static void untilMarked(Broker broker, String id) {
        producer(broker, id).close();
    }

    private static void send(Producer<byte[], byte[]> producer, String topic, String value) {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes(UTF_8)));
        }
    }

    /** The failure has all that is in the partition, where the reader ended, and what a second one finds. */
    private static void readsAll(List<String> wanted, Broker broker, String topic, int partition, String when) {
        Found found = found(broker, topic, partition, "read_committed");
        if (!found.values().equals(wanted)) {
            Found again = found(broker, topic, partition, "read_committed");
            Found all = found(broker, topic, partition, "read_uncommitted");
            String story = " to " + found.end() + "; again " + again + "; there are " + all;
            Check.equal(wanted, found.values(), when + ", partition " + partition + story);
        }
    }

    private static List<String> read(Broker broker, String topic, int partition) {
        return found(broker, topic, partition, "read_committed").values();
    }

    /** The records from the beginning to what was the end, with their offsets. */
    private record Found(List<Long> offsets, List<String> values, long end) {}

    private static Found found(Broker broker, String topic, int partition, String isolation) {
        List<Long> offsets = new ArrayList<>();
        List<String> values = new ArrayList<>();
        try (Consumer<byte[], byte[]> reader = broker.consumer(Map.of("isolation.level", isolation))) {
            TopicPartition place = new TopicPartition(topic, partition);
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            long end = reader.endOffsets(List.of(place)).get(place);
            while (reader.position(place) < end) {
                for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofSeconds(1))) {
                    offsets.add(record.offset());
                    values.add(new String(record.value(), UTF_8));
                }
            }
            return new Found(offsets, values, end);
        }
    }

    private static void commitsAndAborts(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String id = UUID.randomUUID().toString();
        List<String> committed = new ArrayList<>();
        try (Producer<byte[], byte[]> producer = producer(broker, id)) {
            for (int number = 0; number < 20; number++) {
                producer.beginTransaction();
                send(producer, topic, "a" + number);
                producer.flush();
                send(producer, topic, "b" + number);
                if (number % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    committed.add("a" + number);
                    committed.add("b" + number);
                }
            }
            producer.beginTransaction();
            send(producer, topic, "open");
            producer.flush();
            TransactionDescription told = broker.admin.describeTransactions(List.of(id)).description(id).get();
            Check.equal(TransactionState.ONGOING, told.state(), "state");
            Check.equal(PARTITIONS, told.topicPartitions().size(), "partitions");
            for (int partition = 0; partition < PARTITIONS; partition++) {
                readsAll(committed, broker, topic, partition, "while one is open");
            }
            producer.abortTransaction();
        }
        for (int partition = 0; partition < PARTITIONS; partition++) {
            readsAll(committed, broker, topic, partition, "in the end");
        }
        Check.that(
                broker.admin.listTransactions().all().get().stream().anyMatch(each -> each.transactionalId().equals(id)),
                "it is not listed");
    }

    /**
     * "TOPIC ISOLATION SHA-256", of all records of partition 0, as lines of offset, key and value. With "RACK NODE BYTES"
     * behind it, a reader in that rack has at least so many bytes from that broker.
     */
    private static void digest(Broker broker, String argument) throws Exception {
        String[] words = argument.split(" ");
        MessageDigest found = MessageDigest.getInstance("SHA-256");
        TopicPartition place = new TopicPartition(words[0], 0);
        String rack = words.length > 3 ? words[3] : "";
        Map<String, Object> about = Map.of("isolation.level", words[1], "client.rack", rack);
        try (Consumer<byte[], byte[]> reader = broker.consumer(about)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            long end = reader.endOffsets(List.of(place)).get(place);
            while (reader.position(place) < end) {
                for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofSeconds(1))) {
                    String value = record.value() == null ? "null" : new String(record.value(), UTF_8);
                    String line = record.offset() + " " + new String(record.key(), UTF_8) + " " + value + "\n";
                    found.update(line.getBytes(UTF_8));
                }
            }
            if (words.length > 3) {
                double received = Cases.received(reader, "node-" + words[4]);
                Check.that(received >= Double.parseDouble(words[5]), "from the follower came " + received + " bytes");
            }
        }
        Check.equal(words[2], HexFormat.of().formatHex(found.digest()), "records");
    }

    private static void copy(Broker broker, String argument) throws Exception {
        String source = broker.topic(Map.of());
        String target = broker.topic(Map.of());
        String id = UUID.randomUUID().toString();
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        IntStream.range(0, 300)
                .forEach(at -> records.add(new ProducerRecord<>(source, at % PARTITIONS, null, ("" + at).getBytes(UTF_8))));
        broker.produce(records, Map.of());
        Map<String, Object> about = Map.of("group.id", id, "isolation.level", "read_committed", "max.poll.records", 40);
        int done = 0;
        boolean aborts = true;
        try (Producer<byte[], byte[]> producer = producer(broker, id);
                Consumer<byte[], byte[]> consumer = broker.consumer(about)) {
            consumer.subscribe(List.of(source));
            while (done < records.size()) {
                var batch = consumer.poll(Duration.ofSeconds(1));
                if (batch.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : batch) {
                    producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition place : batch.partitions()) {
                    offsets.put(place, new OffsetAndMetadata(consumer.position(place)));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (aborts) {
                    producer.abortTransaction();
                    consumer.committed(consumer.assignment()).forEach((place, known) -> consumer.seek(
                            place, known == null ? new OffsetAndMetadata(0) : known));
                } else {
                    producer.commitTransaction();
                    done += batch.count();
                }
                aborts = !aborts;
            }
        }
        untilMarked(broker, id);
        for (int partition = 0; partition < PARTITIONS; partition++) {
            int from = partition;
            List<String> wanted =
                    IntStream.range(0, 100).mapToObj(at -> "" + (at * PARTITIONS + from)).toList();
            readsAll(wanted, broker, target, partition, "what was copied");
        }
    }

    private static void fencing(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String id = UUID.randomUUID().toString();
        try (Producer<byte[], byte[]> old = producer(broker, id)) {
            old.beginTransaction();
            send(old, topic, "old");
            old.flush();
            try (Producer<byte[], byte[]> young = producer(broker, id)) {
                try {
                    old.commitTransaction();
                    throw new AssertionError("the old one was not fenced");
                } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                    Check.that(true, "as it should be");
                }
                young.beginTransaction();
                send(young, topic, "young");
                young.commitTransaction();
            }
        }
        untilMarked(broker, id);
        for (int partition = 0; partition < PARTITIONS; partition++) {
            Check.equal(List.of("young"), read(broker, topic, partition), "what is left");
        }
    }
}
