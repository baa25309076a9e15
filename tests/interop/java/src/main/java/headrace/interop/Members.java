package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a group, each a consumer on its own thread: read a batch, process it, commit it. They go on whatever becomes
 * of the brokers until standard input ends. To process is to tell it, a line for each, which begins with the time
 * (nanoseconds, of the machine's one clock) and the member's number:
 *
 * <ul>
 *   <li>"read GENERATION PARTITION FIRST LAST CRC": offsets, both inclusive, and a CRC-32 of all their values;
 *   <li>"committed PARTITION NEXT": the commit was answered with success; "refused" and why: it was not;
 *   <li>"assigned", "revoked", "lost" and partitions: what the client says of its assignment;
 *   <li>"closed": it left by itself; "failed" and why: it did not.
 * </ul>
 *
 * <p>"restart NUMBER" on standard input has that member closed and begun anew.
 *
 * <p>Arguments: bootstrap servers, topic, number of the first member, how many, whether they are static, and the
 * consumers' settings, each KEY=VALUE.
 */
public final class Members {
    private static final Duration POLL = Duration.ofMillis(100);

    private final Map<String, Object> settings = new HashMap<>();
    private final String topic;
    private final boolean areStatic;
    private final PrintStream told = new PrintStream(System.out, false, UTF_8);

    private Members(String[] arguments) {
        topic = arguments[1];
        areStatic = Boolean.parseBoolean(arguments[4]);
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("reconnect.backoff.max.ms", 200);
        for (int at = 5; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Members members = new Members(arguments);
        int first = Integer.parseInt(arguments[2]);
        Map<Integer, Member> running = new HashMap<>();
        for (int number = first; number < first + Integer.parseInt(arguments[3]); number++) {
            running.put(number, members.begin(number));
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int number = Integer.parseInt(line.split(" ")[1]);
            running.get(number).end();
            running.put(number, members.begin(number));
        }
        for (Member member : running.values()) {
            member.stopping = true;
        }
        for (Member member : running.values()) {
            member.end();
        }
    }

    private Member begin(int number) {
        Member member = new Member(number);
        member.start();
        return member;
    }

    private final class Member extends Thread implements ConsumerRebalanceListener {
        private final int number;
        private volatile boolean stopping;

        Member(int number) {
            super("member " + number);
            this.number = number;
        }

        void end() throws InterruptedException {
            stopping = true;
            join();
        }

        @Override
        public void run() {
            Map<String, Object> mine = new HashMap<>(settings);
            if (areStatic) {
                mine.put("group.instance.id", "member-" + number);
            }
            try (Consumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(mine, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(topic), this);
                while (!stopping) {
                    readAndCommit(consumer);
                }
            } catch (Throwable failure) {
                tell("failed " + failure);
                return;
            }
            tell("closed");
        }

        private void readAndCommit(Consumer<byte[], byte[]> consumer) {
            ConsumerRecords<byte[], byte[]> found = consumer.poll(POLL);
            if (found.isEmpty()) {
                return;
            }
            int generation = consumer.groupMetadata().generationId();
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (TopicPartition partition : found.partitions()) {
                ends.put(partition, new OffsetAndMetadata(process(partition.partition(), generation, found.records(partition))));
            }
            try {
                consumer.commitSync(ends);
            } catch (CommitFailedException | RebalanceInProgressException | TimeoutException refused) {
                tell("refused " + refused);
                return;
            }
            ends.forEach((partition, end) -> tell("committed " + partition.partition() + " " + end.offset()));
        }

        /** The offset after them. */
        private long process(int partition, int generation, List<ConsumerRecord<byte[], byte[]>> records) {
            CRC32 values = new CRC32();
            long next = records.get(0).offset();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                Check.equal(next++, record.offset(), "an offset of partition " + partition);
                values.update(record.value());
            }
            tell("read " + generation + " " + partition + " " + records.get(0).offset() + " " + (next - 1) + " "
                    + values.getValue());
            return next;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell("lost", partitions);
        }

        private void tell(String what, Collection<TopicPartition> partitions) {
            List<String> words = new ArrayList<>(List.of(what));
            partitions.forEach(partition -> words.add(String.valueOf(partition.partition())));
            tell(words.stream().collect(Collectors.joining(" ")));
        }

        /** One line, whole: its processes may be killed between any two. */
        private void tell(String what) {
            synchronized (told) {
                told.print(System.nanoTime() + " " + number + " " + what.replace('\n', ' ') + "\n");
                told.flush();
            }
        }
    }
}
