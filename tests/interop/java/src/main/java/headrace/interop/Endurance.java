package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.PrintStream;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * An idempotent producer that sends numbered values round robin until its standard input ends, whatever becomes of the
 * brokers, and tells what was acknowledged, a line for each: "partition offset number". What failed is told as "failed"
 * and why, and at the end, once all is answered, "sent" and how many.
 *
 * <p>Arguments: bootstrap servers, topic, partitions.
 */
public final class Endurance {
    private static final int BURST = 250;
    private static final long BURST_EVERY_MS = 200;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "enable.idempotence", true,
                "acks", "all",
                "linger.ms", 2,
                "batch.size", 2048,
                "buffer.memory", 1024 * 1024,
                "request.timeout.ms", 1500,
                "max.block.ms", 60_000,
                "reconnect.backoff.max.ms", 200);
        PrintStream told = new PrintStream(System.out, false, UTF_8);
        AtomicBoolean stopping = endOfInput();
        int sent = 0;
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (!stopping.get()) {
                for (int n = 0; n < BURST; n++) {
                    send(producer, topic, sent % partitions, sent, told);
                    sent++;
                }
                told.flush();
                Thread.sleep(BURST_EVERY_MS);
            }
        }
        told.println("sent " + sent);
        told.flush();
    }

    private static void send(
            Producer<byte[], byte[]> producer, String topic, int partition, int number, PrintStream told) {
        byte[] value = (number + ":" + "x".repeat(number * 37 % 200)).getBytes(UTF_8);
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, failure) -> {
            if (failure == null) {
                told.println(metadata.partition() + " " + metadata.offset() + " " + number);
            } else {
                told.println("failed " + failure);
            }
        });
    }

    private static AtomicBoolean endOfInput() {
        AtomicBoolean ended = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException failure) {
                // as good as its end
            }
            ended.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        return ended;
    }
}
