package headrace.interop;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The broker under test, and short ways to ask things of it. */
final class Broker implements AutoCloseable {
    static final Duration DEADLINE = Duration.ofSeconds(120);

    final String bootstrap;
    final Admin admin;
    private final Map<String, Object> reached;

    /** It is reached with these settings: who logs in, and whom to trust. */
    Broker(String bootstrap, Map<String, Object> login) {
        this.bootstrap = bootstrap;
        this.reached = new HashMap<>(login);
        this.reached.put("bootstrap.servers", bootstrap);
        this.admin = Admin.create(reached);
    }

    boolean isSecured() {
        return reached.containsKey("security.protocol");
    }

    @Override
    public void close() {
        admin.close();
    }

    static String name(String about) {
        return "interop-java-" + about + "-" + UUID.randomUUID();
    }

    /** A new topic of three partitions with these configs. */
    String topic(Map<String, String> configs) throws Exception {
        String name = name("topic");
        admin.createTopics(List.of(new NewTopic(name, 3, (short) 1).configs(configs))).all().get();
        return name;
    }

    /** Sends all and waits; the offset that each was acknowledged at. */
    List<Long> produce(List<ProducerRecord<byte[], byte[]>> records, Map<String, Object> options) throws Exception {
        Map<String, Object> settings = new HashMap<>(reached);
        settings.put("linger.ms", 20);
        settings.putAll(options);
        List<Long> offsets = new ArrayList<>();
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) {
                pending.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> future : pending) {
                offsets.add(future.get().hasOffset() ? future.get().offset() : -1L);
            }
        }
        return offsets;
    }

    Producer<byte[], byte[]> producer(Map<String, Object> options) {
        Map<String, Object> settings = new HashMap<>(reached);
        settings.putAll(options);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    Consumer<byte[], byte[]> consumer(Map<String, Object> options) {
        Map<String, Object> settings = new HashMap<>(reached);
        settings.putAll(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", false));
        settings.putAll(options);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** The first records of a partition. */
    List<ConsumerRecord<byte[], byte[]>> consume(TopicPartition partition, int count) {
        try (Consumer<byte[], byte[]> reader = consumer(Map.of())) {
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
            return take(reader, count);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> take(Consumer<byte[], byte[]> reader, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        Instant end = Instant.now().plus(DEADLINE);
        while (found.size() < count) {
            Check.that(Instant.now().isBefore(end), "only " + found.size() + " of " + count + " records came");
            reader.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        return found;
    }

    /** Checks that a partition holds exactly these records, from offset 0 on. */
    void holds(TopicPartition partition, List<ProducerRecord<byte[], byte[]>> sent) {
        List<ConsumerRecord<byte[], byte[]>> found = consume(partition, sent.size());
        for (int n = 0; n < sent.size(); n++) {
            ConsumerRecord<byte[], byte[]> read = found.get(n);
            ProducerRecord<byte[], byte[]> wanted = sent.get(n);
            Check.equal((long) n, read.offset(), "offset");
            Check.bytes(wanted.key(), read.key(), "key at " + n);
            Check.bytes(wanted.value(), read.value(), "value at " + n);
            Check.equal(wanted.timestamp(), read.timestamp(), "timestamp at " + n);
            Header[] headers = wanted.headers().toArray();
            Check.equal(List.of(headers).size(), read.headers().toArray().length, "headers at " + n);
            for (int h = 0; h < headers.length; h++) {
                Check.equal(headers[h].key(), read.headers().toArray()[h].key(), "header's key at " + n);
                Check.bytes(headers[h].value(), read.headers().toArray()[h].value(), "header's value at " + n);
            }
        }
        Check.equal(sent.size(), found.size(), "records");
    }
}
