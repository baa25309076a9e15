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
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.errors.GroupNotEmptyException;

/** Groups of the new protocol (KIP-848): group.protocol=consumer. */
final class ConsumerGroups {
    private static final int EACH = 20;

    static void addTo(Map<String, Main.Case> cases) {
        cases.put("consumer_group_shares", ConsumerGroups::shares);
        cases.put("consumer_group_static_member", ConsumerGroups::staticMember);
        cases.put("consumer_group_pattern", ConsumerGroups::pattern);
        cases.put("consumer_group_described", ConsumerGroups::described);
        cases.put("consumer_group_after_classic", ConsumerGroups::afterClassic);
    }

    private static Consumer<byte[], byte[]> member(Broker broker, String group, Map<String, Object> options) {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", group, "group.protocol", "consumer"));
        settings.putAll(options);
        return broker.consumer(settings);
    }

    private static void fill(Broker broker, String topic) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int partition = 0; partition < 3; partition++) {
            for (int n = 0; n < EACH; n++) {
                records.add(new ProducerRecord<>(topic, partition, null, ("value-" + n).getBytes(UTF_8)));
            }
        }
        broker.produce(records, Map.of());
    }

    /** Polls all in turns and commits, until so many records have come, none of them twice. */
    private static void read(List<Consumer<byte[], byte[]>> members, Set<String> read, int count) {
        Instant end = Instant.now().plus(Broker.DEADLINE);
        int wanted = read.size() + count;
        while (read.size() < wanted) {
            Check.that(Instant.now().isBefore(end), read.size() + " of " + wanted + " records came");
            for (Consumer<byte[], byte[]> member : members) {
                for (ConsumerRecord<byte[], byte[]> found : member.poll(Duration.ofMillis(50))) {
                    String place = found.topic() + "-" + found.partition() + "@" + found.offset();
                    Check.that(read.add(place), place + " came twice");
                }
                member.commitSync();
            }
        }
    }

    /** One after the other, while each goes on in a thread of its own. */
    private static List<Set<Object>> assignments(List<Consumer<byte[], byte[]>> members) {
        List<Set<Object>> found = new ArrayList<>();
        members.forEach(member -> found.add(new HashSet<>(member.assignment())));
        return found;
    }

    /** What a member had before another was asked, and has after that, it had when the other was asked. */
    private static void nobodyShares(List<Set<Object>> before, List<Set<Object>> after) {
        for (int one = 0; one < before.size(); one++) {
            for (int other = one + 1; other < before.size(); other++) {
                Set<Object> both = new HashSet<>(before.get(one));
                both.retainAll(before.get(other));
                both.retainAll(after.get(one));
                Check.equal(Set.of(), both, "partitions of two members");
            }
        }
    }

    /** Polls all in turns until they have so many partitions, none of them two members'. */
    private static void untilShared(List<Consumer<byte[], byte[]>> members, List<Integer> sizes) {
        Instant end = Instant.now().plus(Broker.DEADLINE);
        while (true) {
            for (Consumer<byte[], byte[]> member : members) {
                Check.that(member.poll(Duration.ofMillis(50)).isEmpty(), "a record came");
            }
            List<Set<Object>> before = assignments(members);
            List<Set<Object>> after = assignments(members);
            nobodyShares(before, after);
            List<Integer> found = new ArrayList<>(after.stream().map(Set::size).sorted().toList());
            Set<Object> all = new HashSet<>();
            after.forEach(all::addAll);
            if (found.equals(sizes) && all.size() == found.stream().mapToInt(Integer::intValue).sum()) {
                return;
            }
            Check.that(Instant.now().isBefore(end), "shared as " + found + " instead of " + sizes);
        }
    }

    private static void shares(Broker broker, String assignor) throws Exception {
        String topic = broker.topic(Map.of());
        String group = Broker.name("consumers");
        Map<String, Object> options = Map.of("group.remote.assignor", assignor);
        Set<String> read = new HashSet<>();
        fill(broker, topic);
        try (Consumer<byte[], byte[]> first = member(broker, group, options)) {
            first.subscribe(List.of(topic));
            read(List.of(first), read, 3 * EACH);
            try (Consumer<byte[], byte[]> second = member(broker, group, options);
                    Consumer<byte[], byte[]> third = member(broker, group, options)) {
                second.subscribe(List.of(topic));
                untilShared(List.of(first, second), List.of(1, 2));
                third.subscribe(List.of(topic));
                untilShared(List.of(first, second, third), List.of(1, 1, 1));
                fill(broker, topic);
                read(List.of(first, second, third), read, 3 * EACH);
            }
            untilShared(List.of(first), List.of(3));
            fill(broker, topic);
            read(List.of(first), read, 3 * EACH);
        }
    }

    /** It comes back in its session to what it had, and nobody else moves. */
    private static void staticMember(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String group = Broker.name("consumers");
        Map<String, Object> options = Map.of("group.instance.id", "one");
        try (Consumer<byte[], byte[]> other = member(broker, group, Map.of())) {
            other.subscribe(List.of(topic));
            Set<Object> before;
            try (Consumer<byte[], byte[]> first = member(broker, group, options)) {
                first.subscribe(List.of(topic));
                untilShared(List.of(first, other), List.of(1, 2));
                before = new HashSet<>(first.assignment());
            }
            try (Consumer<byte[], byte[]> again = member(broker, group, options)) {
                again.subscribe(List.of(topic));
                untilShared(List.of(again, other), List.of(1, 2));
                Check.equal(before, new HashSet<Object>(again.assignment()), "its partitions");
            }
        }
    }

    private static void pattern(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String group = Broker.name("consumers");
        Set<String> read = new HashSet<>();
        fill(broker, topic);
        try (Consumer<byte[], byte[]> member = member(broker, group, Map.of())) {
            member.subscribe(new SubscriptionPattern("no|" + Pattern.quote(topic)));
            read(List.of(member), read, 3 * EACH);
        }
    }

    private static void described(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String group = Broker.name("consumers");
        try (Consumer<byte[], byte[]> member = member(broker, group, Map.of())) {
            member.subscribe(List.of(topic));
            untilShared(List.of(member), List.of(3));
            ConsumerGroupDescription found = broker.admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Check.equal(GroupType.CONSUMER, found.type(), "type");
            Check.equal(GroupState.STABLE, found.groupState(), "state");
            Check.equal("uniform", found.partitionAssignor(), "assignor");
            Check.equal(1, found.members().size(), "members");
            Check.equal(member.assignment(), found.members().iterator().next().assignment().topicPartitions(), "share");
            var consumers = new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER));
            Check.that(broker.admin.listGroups(consumers).all().get().stream()
                    .map(GroupListing::groupId).anyMatch(group::equals), "it is listed");
            var classic = new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC));
            Check.that(broker.admin.listGroups(classic).all().get().stream()
                    .map(GroupListing::groupId).noneMatch(group::equals), "it is not listed as classic");
            try {
                broker.admin.deleteConsumerGroups(List.of(group)).all().get();
                Check.that(false, "a group with members was deleted");
            } catch (ExecutionException refused) {
                Check.that(refused.getCause() instanceof GroupNotEmptyException, "refused: " + refused.getCause());
            }
        }
        broker.admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    /** A group whose members are gone goes on in the other protocol where it committed. */
    private static void afterClassic(Broker broker, String argument) throws Exception {
        String topic = broker.topic(Map.of());
        String group = Broker.name("consumers");
        Set<String> read = new HashSet<>();
        for (String protocol : List.of("classic", "consumer", "classic")) {
            fill(broker, topic);
            try (Consumer<byte[], byte[]> member =
                    broker.consumer(Map.of("group.id", group, "group.protocol", protocol))) {
                member.subscribe(List.of(topic));
                read(List.of(member), read, 3 * EACH);
            }
        }
    }
}
