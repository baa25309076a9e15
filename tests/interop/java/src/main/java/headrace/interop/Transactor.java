package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One client of a transactional id, of the new protocol (KIP-890), as a process of its own. It works, and tells each step
 * in a line, as tests/promises/support/transacting.py does, which has librdkafka.
 *
 * <p>Arguments: bootstrap servers, topic, partitions, transactional id, session, timeout in milliseconds, and whether it
 * consumes the topic's first partition for a group of its own.
 */
public final class Transactor {
    private static final Duration CALL = Duration.ofSeconds(5);
    private static final int DELIVERY_MS = 20_000;
    private static final double ABORTS = 0.2;
    private static final int THINK_MS_MAX = 40;
    private static final int RECORDS_MAX = 2;
    private static final int TAKES_MAX = 4;
    private static final Duration TAKES = Duration.ofMillis(100);
    private static final int SESSIONS_MAX = 1 << 10;

    private final String topic;
    private final int partitions;
    private final int session;
    private final TopicPartition input;
    private final KafkaProducer<byte[], byte[]> producer;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Random random;
    private final CountDownLatch toldToEnd = new CountDownLatch(1);
    private final FileOutputStream told = new FileOutputStream(FileDescriptor.out);
    private long lastNs = 0;
    private Long position = null;
    private int number = 0;

    private Transactor(String[] arguments) {
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        session = Integer.parseInt(arguments[4]);
        input = new TopicPartition(topic, 0);
        random = new Random(session);
        Map<String, Object> common = Map.of(
                "bootstrap.servers", arguments[0],
                "request.timeout.ms", 1500,
                "retry.backoff.ms", 20,
                "reconnect.backoff.ms", 20,
                "reconnect.backoff.max.ms", 200,
                "socket.connection.setup.timeout.ms", 1500);
        Map<String, Object> writes = new HashMap<>(common);
        writes.putAll(Map.of(
                "transactional.id", arguments[3],
                "transaction.timeout.ms", Integer.parseInt(arguments[5]),
                "linger.ms", 0,
                "delivery.timeout.ms", DELIVERY_MS,
                "max.block.ms", CALL.toMillis()));
        producer = new KafkaProducer<>(writes, new ByteArraySerializer(), new ByteArraySerializer());
        Map<String, Object> reads = new HashMap<>(common);
        reads.putAll(Map.of(
                "group.id", arguments[3],
                "enable.auto.commit", false,
                "isolation.level", "read_committed",
                "auto.offset.reset", "none",
                "max.poll.records", TAKES_MAX));
        consumer = Boolean.parseBoolean(arguments[6])
                ? new KafkaConsumer<>(reads, new ByteArrayDeserializer(), new ByteArrayDeserializer())
                : null;
    }

    public static void main(String[] arguments) throws Exception {
        new Transactor(arguments).run();
        Runtime.getRuntime().halt(0); // the clients' own end waits for brokers that may be gone
    }

    private void run() throws Exception {
        Thread reader = new Thread(this::readToEnd);
        reader.setDaemon(true);
        reader.start();
        try {
            untilDone(producer::initTransactions);
            tell("ready");
            while (!think()) {
                transact();
            }
            tell("over told");
        } catch (CannotGoOn reason) {
            tell("over " + reason.getMessage());
        }
    }

    private void readToEnd() {
        try {
            while (System.in.read() >= 0) {}
        } catch (IOException failure) {
            // as good as its end
        }
        toldToEnd.countDown();
    }

    /** Waits a moment. Returns whether it is to end. */
    private boolean think() throws InterruptedException {
        return toldToEnd.await(random.nextInt(THINK_MS_MAX), TimeUnit.MILLISECONDS);
    }

    /** In one write, so that a line is told whole or not at all. Python's `time.monotonic_ns` is the same clock. */
    private synchronized void tell(String words) throws IOException {
        lastNs = Math.max(lastNs + 1, System.nanoTime());
        told.write((lastNs * SESSIONS_MAX + session + " " + words + "\n").getBytes(UTF_8));
    }

    // one transaction

    private void transact() throws Exception {
        number++;
        tell("began");
        checked(producer::beginTransaction);
        boolean isAsked = false;
        try {
            fill();
            if (random.nextDouble() < ABORTS) {
                throw new Abortable();
            }
            tell("asked");
            isAsked = true;
            untilDone(producer::commitTransaction);
            tell("ended committed");
        } catch (Abortable reason) {
            position = null;
            abort();
            if (!isAsked) { // else nobody knows what the answer would have been
                tell("ended aborted");
            }
        }
    }

    private void abort() throws Exception {
        try {
            untilDone(producer::abortTransaction);
        } catch (Abortable reason) {
            throw new CannotGoOn("the-abort-of-an-abort");
        }
    }

    /** Writes all of it, and waits until that is acknowledged. */
    private void fill() throws Exception {
        List<Long> taken = take();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int partition : targets(taken)) {
            String value = session + "/" + number + "/" + sent.size();
            tell("wrote " + partition + " " + value);
            checked(() -> sent.add(producer.send(
                    new ProducerRecord<>(topic, partition, null, value.getBytes(UTF_8)),
                    (metadata, failure) -> onDelivery(value, metadata, failure))));
            think();
        }
        for (Future<RecordMetadata> each : sent) {
            untilDone(() -> each.get(CALL.toMillis(), TimeUnit.MILLISECONDS));
        }
        if (!taken.isEmpty()) {
            long end = taken.get(taken.size() - 1) + 1;
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(input, new OffsetAndMetadata(end));
            untilDone(() -> producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata()));
            position = end;
        }
        think();
    }

    private List<Integer> targets(List<Long> taken) {
        List<Integer> found = new ArrayList<>();
        if (!taken.isEmpty()) {
            taken.forEach(each -> found.add(1 + random.nextInt(partitions - 1)));
            return found;
        }
        List<Integer> all = new ArrayList<>(IntStream.range(0, partitions).boxed().toList());
        Collections.shuffle(all, random);
        for (int partition : all.subList(0, 1 + random.nextInt(partitions))) {
            found.addAll(Collections.nCopies(1 + random.nextInt(RECORDS_MAX), partition));
        }
        return found;
    }

    private void onDelivery(String value, RecordMetadata metadata, Exception failure) {
        try {
            if (failure == null) {
                tell("acknowledged " + value + " " + metadata.offset());
            }
        } catch (IOException gone) {
            Runtime.getRuntime().halt(1);
        }
    }

    // its input

    /** Reads some input from the committed offset on. Returns its offsets. */
    private List<Long> take() throws Exception {
        List<Long> offsets = new ArrayList<>();
        if (consumer == null) {
            return offsets;
        }
        if (position == null) {
            position = committed();
            consumer.assign(List.of(input));
            consumer.seek(input, position);
        }
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(TAKES)) {
            offsets.add(record.offset());
        }
        if (!offsets.isEmpty()) {
            StringBuilder line = new StringBuilder("taken " + position + " " + (offsets.get(offsets.size() - 1) + 1));
            offsets.forEach(offset -> line.append(' ').append(offset));
            tell(line.toString());
        }
        return offsets;
    }

    /** The stable committed offset; 0: none. */
    private long committed() throws Exception {
        while (true) {
            try {
                OffsetAndMetadata found = consumer.committed(Set.of(input), CALL).get(input);
                long offset = found == null ? 0 : found.offset();
                tell("looked " + offset);
                return offset;
            } catch (KafkaException error) {
                tell("again " + error.getClass().getSimpleName());
            }
        }
    }

    // errors

    private interface Call {
        void run() throws Exception;
    }

    /** Another client has the id, or this one's epoch is over. */
    private static final class CannotGoOn extends Exception {
        CannotGoOn(String reason) {
            super(reason);
        }
    }

    /** The transaction can only be aborted. */
    private static final class Abortable extends Exception {}

    /** Calls again where that may help. */
    private void untilDone(Call call) throws Exception {
        while (checked(call)) {}
    }

    /** Returns whether to call again. */
    private boolean checked(Call call) throws Exception {
        Exception met;
        try {
            call.run();
            return false;
        } catch (ExecutionException failure) { // of one record: the producer has dropped it
            met = (Exception) failure.getCause();
            tell("again " + met.getClass().getSimpleName());
            throw isFatal(met) ? new CannotGoOn(met.getClass().getSimpleName()) : new Abortable();
        } catch (KafkaException | IllegalStateException | java.util.concurrent.TimeoutException failure) {
            met = failure;
        }
        tell("again " + met.getClass().getSimpleName());
        if (met instanceof TimeoutException || met instanceof java.util.concurrent.TimeoutException) {
            return true;
        }
        throw isFatal(met) ? new CannotGoOn(met.getClass().getSimpleName()) : new Abortable();
    }

    private static boolean isFatal(Exception met) {
        return met instanceof ProducerFencedException
                || met instanceof UnsupportedVersionException
                || met instanceof AuthorizationException
                || met instanceof IllegalStateException;
    }
}
