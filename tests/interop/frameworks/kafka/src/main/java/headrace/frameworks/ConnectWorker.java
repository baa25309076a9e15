package headrace.frameworks;

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.apache.kafka.connect.runtime.Connect;

/**
 * Kafka Connect's distributed worker, exactly once, with all that is on the class path: BOOTSTRAP, GROUP. It says where
 * its REST interface is.
 */
public final class ConnectWorker {
    private static final String TEXT = "org.apache.kafka.connect.storage.StringConverter";

    private ConnectWorker() {}

    public static void main(String[] arguments) throws Exception {
        Connect<?> connect = new ConnectDistributed().startConnect(settings(arguments[0], arguments[1]));
        Life.isUp(connect.rest().advertisedUrl().toString());
        Life.lasts();
        connect.stop();
        connect.awaitStop();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, String> settings(String bootstrap, String group) {
        Map<String, String> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", group,
                "exactly.once.source.support", "enabled",
                "listeners", "http://127.0.0.1:0",
                "plugin.discovery", "service_load",
                "key.converter", TEXT,
                "value.converter", TEXT,
                "session.timeout.ms", "10000",
                "heartbeat.interval.ms", "1000"));
        for (String kind : new String[] {"config", "offset", "status"}) {
            settings.put(kind + ".storage.topic", group + "-" + kind);
            settings.put(kind + ".storage.replication.factor", "3");
        }
        settings.put("scheduled.rebalance.max.delay.ms", "0");
        settings.put("producer.transaction.timeout.ms", "20000");
        settings.put("offset.storage.partitions", "3");
        settings.put("status.storage.partitions", "3");
        return settings;
    }
}
