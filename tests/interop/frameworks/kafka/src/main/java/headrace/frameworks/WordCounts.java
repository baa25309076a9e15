package headrace.frameworks;

import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * One instance of a Kafka Streams application, exactly once: BOOTSTRAP, APPLICATION, STATE.
 *
 * <p>It counts the words of topic APPLICATION-lines into APPLICATION-counts, an update for each word, and joins lines and
 * APPLICATION-marks by their keys into APPLICATION-joined.
 */
public final class WordCounts {
    private static final Duration WINDOW = Duration.ofDays(1);
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    private WordCounts() {}

    public static void main(String[] arguments) throws Exception {
        CountDownLatch running = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology(arguments[1]), settings(arguments));
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            } else if (now == KafkaStreams.State.ERROR) {
                System.err.println("the application has failed");
                Runtime.getRuntime().halt(1);
            }
        });
        streams.start();
        running.await();
        Life.isUp(arguments[1]);
        Life.lasts();
        Runtime.getRuntime().halt(streams.close(DEADLINE) ? 0 : 1);
    }

    private static Topology topology(String application) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(application + "-lines");
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(String::valueOf)
                .to(application + "-counts");
        KStream<String, String> marks = builder.stream(application + "-marks");
        lines.join(marks, (line, mark) -> line + "/" + mark, JoinWindows.ofTimeDifferenceAndGrace(WINDOW, WINDOW))
                .to(application + "-joined");
        return builder.build();
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
                StreamsConfig.APPLICATION_ID_CONFIG, arguments[1],
                StreamsConfig.STATE_DIR_CONFIG, arguments[2],
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
                StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1,
                StreamsConfig.REPLICATION_FACTOR_CONFIG, 3,
                StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
                StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1000));
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 1_000);
        return settings;
    }
}
