package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/** A group's members are replaced one by one, from the classic protocol to the consumer protocol and back (KIP-848). */
final class Migration {
    private static final int EACH = 4;
    private static final int MEMBERS = 3;

    private final Broker broker;
    private final String topic;
    private final String group = Broker.name("migrating");
    private final boolean cooperative;
    private final boolean fixed;
    private final Map<Integer, Consumer<byte[], byte[]>> members = new HashMap<>();
    private final Set<String> read = new HashSet<>();
    private final Set<String> uncommitted = new HashSet<>();
    private int sent;

    private Migration(Broker broker, String how) throws Exception {
        this.broker = broker;
        this.topic = broker.topic(Map.of());
        this.cooperative = how.contains("cooperative");
        this.fixed = how.contains("static");
    }

    static void addTo(Map<String, Main.Case> cases) {
        cases.put("migration", (broker, how) -> new Migration(broker, how).run());
    }

    private void run() throws Exception {
        try {
            for (int at = 0; at < MEMBERS; at++) {
                begin(at, "classic");
            }
            goOn(GroupType.CLASSIC);
            for (String protocol : List.of("consumer", "classic")) {
                for (int at = 0; at < MEMBERS; at++) {
                    members.remove(at).close();
                    begin(at, protocol);
                    boolean last = protocol.equals("classic") && at == MEMBERS - 1;
                    goOn(last ? GroupType.CLASSIC : GroupType.CONSUMER);
                }
            }
        } finally {
            members.values().forEach(member -> member.close(Duration.ofSeconds(1)));
        }
    }

    private void begin(int at, String protocol) {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", group, "group.protocol", protocol));
        if (protocol.equals("classic")) {
            Class<?> assignor = cooperative ? CooperativeStickyAssignor.class : RangeAssignor.class;
            settings.put("partition.assignment.strategy", assignor.getName());
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 100);
        }
        if (fixed) {
            settings.put("group.instance.id", "instance-" + at);
        }
        Consumer<byte[], byte[]> member = broker.consumer(settings);
        member.subscribe(List.of(topic));
        members.put(at, member);
    }

    /** Records flow; everybody polls until each member has its partition, the group is of this type, and all was read. */
    private void goOn(GroupType type) throws Exception {
        fill();
        Instant end = Instant.now().plus(Broker.DEADLINE);
        while (true) {
            poll();
            boolean shared = members.values().stream().allMatch(member -> member.assignment().size() == 1);
            ConsumerGroupDescription found;
            try {
                found = broker.admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            } catch (ExecutionException refused) { // nobody has reached its coordinator yet
                Check.that(refused.getCause() instanceof GroupIdNotFoundException && read.isEmpty(), refused.toString());
                Check.that(Instant.now().isBefore(end), refused.toString());
                continue;
            }
            Check.that(found.groupState() != GroupState.EMPTY && found.groupState() != GroupState.DEAD || read.isEmpty(),
                    "the group is " + found.groupState());
            boolean settled = found.groupState() == GroupState.STABLE && found.members().size() == MEMBERS;
            if (shared && settled && read.size() == sent) {
                Check.equal(type, found.type(), "type");
                return;
            }
            String story = read.size() + " of " + sent + ", " + found + members.values().stream()
                    .map(member -> member.assignment().toString()).toList();
            Check.that(Instant.now().isBefore(end), story);
        }
    }

    private void poll() {
        for (Consumer<byte[], byte[]> member : members.values()) {
            List<String> batch = new ArrayList<>();
            for (ConsumerRecord<byte[], byte[]> found : member.poll(Duration.ofMillis(20))) {
                String place = found.partition() + "@" + found.offset();
                Check.that(read.add(place) || uncommitted.contains(place), place + " came twice");
                batch.add(place);
            }
            try {
                member.commitSync();
                uncommitted.removeAll(batch);
            } catch (CommitFailedException | RebalanceInProgressException refused) {
                uncommitted.addAll(batch);
            }
        }
    }

    private void fill() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int partition = 0; partition < MEMBERS; partition++) {
            for (int n = 0; n < EACH; n++) {
                records.add(new ProducerRecord<>(topic, partition, null, ("value-" + n).getBytes(UTF_8)));
            }
        }
        broker.produce(records, Map.of());
        sent += records.size();
    }
}
