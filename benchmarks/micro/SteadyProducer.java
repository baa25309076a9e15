import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's own producer, idempotent and with its own settings, at a steady pace (benchmarks.micro.steady): tells
 * of each record when it was sent and when it was acknowledged, in nanoseconds of the monotonic clock, until its
 * standard input ends.
 */
public final class SteadyProducer {
    private static final int RECORD_BYTES = 1_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        long pause = TimeUnit.SECONDS.toNanos(1) / Long.parseLong(arguments[2]);
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        byte[] value = new byte[RECORD_BYTES];
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            long due = System.nanoTime();
            while (!isOver()) {
                long sent = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, error) -> tell(sent, error));
                due += pause;
                LockSupport.parkNanos(due - System.nanoTime());
            }
        }
    }

    private static boolean isOver() throws Exception {
        return System.in.available() > 0;
    }

    private static synchronized void tell(long sent, Exception error) {
        System.out.println(sent + " " + System.nanoTime() + (error == null ? "" : " " + error));
    }
}
