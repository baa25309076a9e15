package headrace.frameworks;

import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A bounded job of Apache Flink that writes the numbers below COUNT to a topic through its Kafka sink, exactly once:
 * BOOTSTRAP, TOPIC, COUNT, FAILS, NAMING, CHECKPOINTS, and where it is to go on, the checkpoint.
 *
 * <p>It fails once, at number FAILS, and goes on by itself from its last checkpoint; so it does where brokers fail.
 */
public final class Numbers {
    private static final int PARALLEL = 2;
    private static final int NUMBERS_PER_CHECKPOINT = 20;
    private static final long CHECKPOINT_EVERY_MS = 200;
    private static final int RESTARTS = 100;
    private static final AtomicBoolean HAS_FAILED = new AtomicBoolean();

    private Numbers() {}

    public static void main(String[] arguments) throws Exception {
        long count = Long.parseLong(arguments[2]);
        StreamExecutionEnvironment job =
                StreamExecutionEnvironment.createLocalEnvironment(PARALLEL, settings(arguments));
        job.enableCheckpointing(CHECKPOINT_EVERY_MS);
        GeneratorFunction<Long, Long> itself = number -> number;
        job.fromSource(
                        new DataGeneratorSource<>(
                                itself, count, RateLimiterStrategy.perCheckpoint(NUMBERS_PER_CHECKPOINT), Types.LONG),
                        WatermarkStrategy.noWatermarks(),
                        "numbers")
                .map(new FailsOnce(Long.parseLong(arguments[3])))
                .sinkTo(sink(arguments[0], arguments[1], TransactionNamingStrategy.valueOf(arguments[4])));
        JobClient running = job.executeAsync();
        System.out.println("up " + running.getJobID());
        running.getJobExecutionResult().get();
        Runtime.getRuntime().halt(0);
    }

    private static Configuration settings(String[] arguments) {
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, arguments[5]);
        settings.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, RESTARTS);
        if (arguments.length > 6) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, arguments[6]);
        }
        return settings;
    }

    private static KafkaSink<String> sink(String bootstrap, String topic, TransactionNamingStrategy naming) {
        return KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(topic)
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(topic)
                .setTransactionNamingStrategy(naming)
                .setProperty("transaction.timeout.ms", "60000")
                .build();
    }

    /** Numbers as text; it fails at one of them, the first time that it comes. */
    private static final class FailsOnce implements MapFunction<Long, String> {
        private final long at;

        FailsOnce(long at) {
            this.at = at;
        }

        @Override
        public String map(Long number) {
            if (number == at && HAS_FAILED.compareAndSet(false, true)) {
                throw new IllegalStateException("this failure is planned");
            }
            return String.valueOf(number);
        }
    }
}
