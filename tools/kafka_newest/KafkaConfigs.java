import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.DynamicConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints every topic and broker config of Apache Kafka, one a line, fields between tabs. */
public class KafkaConfigs {
    private static final String NONE = "\\N";

    public static void main(String[] args) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        new TreeMap<>(LogConfig.configDefCopy().configKeys()).forEach((name, key) ->
            print("topic", key, "", ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS.getOrDefault(name, NONE)));
        Map<String, ConfigDef.ConfigKey> brokers = new TreeMap<>(DynamicConfig.Broker.configKeys());
        brokers.putAll(AbstractKafkaConfig.CONFIG_DEF.configKeys());
        brokers.forEach((name, key) -> print("broker", key, modes.getOrDefault(name, "read-only"), NONE));
    }

    private static void print(String kind, ConfigDef.ConfigKey key, String mode, String synonym) {
        Object known = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? null : key.defaultValue;
        String text = known == null ? NONE : ConfigDef.convertToString(known, key.type);
        String validator = key.validator == null ? "" : key.validator.toString();
        String isInternal = String.valueOf(key.internalConfig);
        System.out.println(String.join("\t", kind, key.name, key.type.name(), text, validator, isInternal, mode, synonym));
    }
}
