import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.DefaultRecordBatch;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Exit;

/**
 * What Apache Kafka's own classes read of record batches, and what its cleaner makes of them. A line of standard input
 * is a question and its arguments, separated by tabs; it is answered by one line: "said" or "failed", and as Base64 the
 * text.
 */
public final class Batches {
    private static final HexFormat HEX = HexFormat.of();
    private static final Duration POLL = Duration.ofSeconds(1);
    private static final int SILENT_POLLS_MAX = 60;

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(System.out);
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("exit " + status);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            String how = "said";
            try {
                answer(words[0], Arrays.copyOfRange(words, 1, words.length));
            } catch (Throwable failure) {
                failure.printStackTrace();
                how = "failed";
            }
            answers.println(how + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
            printed.reset();
        }
        System.exit(0);
    }

    private static void answer(String question, String[] arguments) throws Exception {
        switch (question) {
            case "walk" -> walk(MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])))));
            case "clean" -> clean(arguments);
            case "consume" -> consume(arguments[0], Arrays.copyOfRange(arguments, 1, arguments.length));
            case "dump" -> Class.forName("kafka.tools.DumpLogSegments").getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
            default -> throw new IllegalArgumentException(question);
        }
    }

    /** Every batch as a consumer reads it: its checksum, then its records, unpacked as a stream. */
    private static void walk(MemoryRecords records) {
        BufferSupplier buffers = BufferSupplier.create();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            DefaultRecordBatch whole = (DefaultRecordBatch) batch;
            say("batch", batch.baseOffset(), batch.lastOffset(), batch.partitionLeaderEpoch(),
                batch.compressionType().id, batch.timestampType().id, whole.baseTimestamp(), batch.maxTimestamp(),
                batch.producerId(), batch.producerEpoch(), batch.baseSequence(), flag(batch.isTransactional()),
                flag(batch.isControlBatch()), flag(batch.deleteHorizonMs().isPresent()), batch.countOrNull());
            try (CloseableIterator<Record> each = batch.streamingIterator(buffers)) {
                while (each.hasNext()) {
                    Record record = each.next();
                    record.ensureValid();
                    say("record", record.offset(), record.timestamp(), hex(record.key()), hex(record.value()),
                        headers(record.headers()));
                }
            }
        }
    }

    /** What Kafka's cleaner leaves of a file: these offsets, and batches of which none is left. */
    private static void clean(String[] arguments) throws Exception {
        Set<Long> kept = new HashSet<>();
        for (String offset : arguments[4].isEmpty() ? new String[0] : arguments[4].split(",")) {
            kept.add(Long.parseLong(offset));
        }
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0]))));
        var filter = new MemoryRecords.RecordFilter(Long.parseLong(arguments[2]), Long.parseLong(arguments[3])) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, false);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return kept.contains(record.offset());
            }
        };
        ByteBuffer room = ByteBuffer.allocate(2 * records.sizeInBytes() + (1 << 20));
        ByteBuffer made = records.filterTo(filter, room, BufferSupplier.create()).outputBuffer();
        made.flip();
        byte[] bytes = new byte[made.remaining()];
        made.get(bytes);
        Files.write(Path.of(arguments[1]), bytes);
    }

    /** All of these topics' records, from the beginning of each partition to its end. */
    private static void consume(String bootstrap, String[] topics) {
        Properties about = new Properties();
        about.putAll(Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed",
            "auto.offset.reset", "none", "enable.auto.commit", "false", "exclude.internal.topics", "false"));
        try (var consumer = new KafkaConsumer<>(about, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            for (String topic : topics) {
                consumer.partitionsFor(topic).forEach(each -> places.add(new TopicPartition(topic, each.partition())));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            int silent = 0;
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                var polled = consumer.poll(POLL);
                silent = polled.isEmpty() ? silent + 1 : 0;
                if (silent > SILENT_POLLS_MAX) {
                    throw new IllegalStateException("Nothing more comes: " + consumer.metrics().size());
                }
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    say("row", record.topic(), record.partition(), record.offset(), record.timestamp(),
                        record.timestampType().id, hex(record.key()), hex(record.value()),
                        headers(record.headers().toArray()));
                }
            }
        }
    }

    private static void say(Object... words) {
        System.out.println(String.join("\t", Arrays.stream(words).map(String::valueOf).toList()));
    }

    private static int flag(boolean is) {
        return is ? 1 : 0;
    }

    private static String headers(Header[] headers) {
        return String.join(",", Arrays.stream(headers)
            .map(each -> hex(each.key().getBytes(StandardCharsets.UTF_8)) + "=" + hex(each.value())).toList());
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "-";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HEX.formatHex(copy);
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : HEX.formatHex(bytes);
    }
}
