import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own Java client on a secured listener. Each line of standard input names a file of properties and a topic. The
 * client creates the topic, and reads what it has written: the line "ok", or the name of the exception that it met. A
 * property headrace.lasts.ms has it write record after record for that long, over the connections that it has.
 */
public final class Secured {
    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            Properties properties = new Properties();
            try (FileInputStream file = new FileInputStream(words[0])) {
                properties.load(file);
            }
            properties.put("default.api.timeout.ms", "120000");
            properties.put("request.timeout.ms", "5000");
            properties.put("max.block.ms", "120000");
            System.out.println(outcome(properties, words[1]).replaceAll("\\s+", " "));
        }
    }

    private static String outcome(Properties properties, String topic) throws Exception {
        try {
            try (Admin admin = Admin.create(properties)) {
                admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get(120, TimeUnit.SECONDS);
            }
            StringSerializer text = new StringSerializer();
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
                long end = System.nanoTime() + 1_000_000L * Long.parseLong(properties.getProperty("headrace.lasts.ms", "0"));
                do {
                    producer.send(new ProducerRecord<>(topic, "k", "v")).get(120, TimeUnit.SECONDS);
                } while (System.nanoTime() < end);
            }
            StringDeserializer read = new StringDeserializer();
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties, read, read)) {
                TopicPartition partition = new TopicPartition(topic, 0);
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(120))) {
                    return each.value().equals("v") ? "ok" : each.value();
                }
                return "nothing was read";
            }
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return error.getClass().getSimpleName() + ": " + cause.getMessage();
        }
    }
}
