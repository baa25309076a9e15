import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Tells how Apache Kafka's own classes read configs. Each line of standard input is answered by one line; texts are
 * Base64, a refusal is "no".
 */
public final class Configs {
    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            System.out.println(
                switch (words[0]) {
                    case "parse" -> parsed(ConfigDef.Type.valueOf(words[1]), text(words[2]));
                    case "topic" -> validated(words[1], text(words[2]));
                    default -> created(words[1], words[2]);
                });
        }
    }

    private static String parsed(ConfigDef.Type type, String text) {
        try {
            return coded(ConfigDef.convertToString(ConfigDef.parseType("key", text, type), type));
        } catch (ConfigException refused) {
            return "no";
        }
    }

    private static String validated(String key, String value) {
        Map<String, String> configs = new HashMap<>(Map.of(key, value));
        try {
            LogConfig.validate(configs);
            Object found = new LogConfig(configs).values().get(key);
            return coded(ConfigDef.convertToString(found, LogConfig.configDefCopy().configKeys().get(key).type));
        } catch (ConfigException | InvalidConfigurationException refused) {
            return "no";
        }
    }

    /** A topic with every config that a broker of Kafka describes of one, set again all at once: what is described. */
    private static String created(String bootstrap, String name) throws Exception {
        Map<String, String> configs = new TreeMap<>();
        Map<String, ConfigDef.ConfigKey> keys = LogConfig.configDefCopy().configKeys();
        new LogConfig(Map.of()).values().forEach((key, value) -> {
            if (value != null) {
                configs.put(key, ConfigDef.convertToString(value, keys.get(key).type));
            }
        });
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(configs))).all().get();
            List<AlterConfigOp> changes = new ArrayList<>();
            configs.forEach((key, value) ->
                changes.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
            admin.incrementalAlterConfigs(Map.of(topic, changes)).all().get();
            Config described = admin.describeConfigs(List.of(topic)).all().get().get(topic);
            StringBuilder told = new StringBuilder();
            configs.forEach((key, value) -> {
                ConfigEntry entry = described.get(key);
                told.append(key).append('=').append(value).append('=').append(entry == null ? "" : entry.value());
                told.append('=').append(entry == null ? "" : entry.source()).append('\n');
            });
            return coded(told.toString());
        }
    }

    private static String text(String coded) {
        return new String(Base64.getDecoder().decode(coded), StandardCharsets.UTF_8);
    }

    private static String coded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)) + ".";
    }
}
