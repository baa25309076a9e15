package headrace.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;

/**
 * The calls that existing consoles make (kafbat UI, AKHQ), page by page, in their order and with their options. Nothing
 * may fail that does not fail on Apache Kafka, too.
 */
final class Consoles {
    private static final int RECORDS = 50;

    static void addTo(Map<String, Main.Case> cases) {
        cases.put("console_opens", Consoles::opens);
        cases.put("console_brokers", Consoles::brokers);
        cases.put("console_topics", Consoles::topics);
        cases.put("console_records", Consoles::records);
        cases.put("console_groups", Consoles::groups);
        cases.put("console_changes_topics", Consoles::changesTopics);
        cases.put("console_changes_groups", Consoles::changesGroups);
        cases.put("console_access", Consoles::access);
    }

    /** What is asked before the first page: who is there, what the brokers can, and whether there are ACLs. */
    private static void opens(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        for (boolean operations : List.of(false, true)) {
            var found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(operations));
            Check.that(!found.clusterId().get().isEmpty(), "the cluster has an id");
            Check.that(found.controller().get() != null, "there is a controller");
            Check.equal(operations, found.authorizedOperations().get() != null, "operations");
        }
        ConfigResource controller = brokerOf(admin.describeCluster().controller().get());
        var configs = admin.describeConfigs(List.of(controller)).all().get().get(controller);
        Check.that(!"false".equals(value(configs.entries(), "delete.topic.enable")), "topics may be deleted");
        acls(broker, AclBindingFilter.ANY);
        Check.that(!admin.describeFeatures().featureMetadata().get().finalizedFeatures().isEmpty(), "features");
        Check.that(!admin.describeMetadataQuorum().quorumInfo().get().voters().isEmpty(), "voters");
    }

    /** The page of brokers, and of one broker: configs with sources and documentation, directories, disks. */
    private static void brokers(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        Collection<Node> nodes = admin.describeCluster().nodes().get();
        List<ConfigResource> all = nodes.stream().map(Consoles::brokerOf).toList();
        for (var options : List.of(
                new DescribeConfigsOptions(),
                new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))) {
            admin.describeConfigs(all, options).all().get().forEach((each, configs) ->
                    Check.that(configs.entries().size() > 100, each + " has all configs"));
        }
        Set<Integer> ids = nodes.stream().map(Node::id).collect(Collectors.toSet());
        admin.describeLogDirs(ids).allDescriptions().get().forEach((id, directories) ->
                directories.values().forEach(each -> Check.that(each.error() == null, "a directory of " + id)));
        admin.listPartitionReassignments().reassignments().get();
        ConfigResource first = all.get(0);
        for (String size : List.of("2000000", "1048588")) {
            var change = new AlterConfigOp(new ConfigEntry("message.max.bytes", size), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(first, List.of(change))).all().get();
        }
        var back = new AlterConfigOp(new ConfigEntry("message.max.bytes", null), AlterConfigOp.OpType.DELETE);
        admin.incrementalAlterConfigs(Map.of(first, List.of(back))).all().get();
    }

    /** The list of topics, with the internal ones, and the page of one. */
    private static void topics(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        String topic = written(broker);
        Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        Check.that(names.contains(topic), "the topic is listed");
        admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get();
        var options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
        for (var found : List.of(
                admin.describeTopics(names).allTopicNames().get(),
                admin.describeTopics(names, options).allTopicNames().get())) {
            Check.equal(names, found.keySet(), "topics described");
        }
        List<ConfigResource> resources =
                names.stream().map(each -> new ConfigResource(ConfigResource.Type.TOPIC, each)).toList();
        for (boolean documented : List.of(false, true)) {
            var wanted = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(documented);
            admin.describeConfigs(resources, wanted).all().get();
        }
        Set<TopicPartition> partitions = partitions(admin, names);
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp())) {
            admin.listOffsets(partitions.stream().collect(Collectors.toMap(each -> each, each -> spec))).all().get();
        }
        try (Consumer<byte[], byte[]> reader = broker.consumer(reading())) {
            Check.equal(partitions, reader.beginningOffsets(partitions).keySet(), "first offsets");
            Check.equal(partitions, reader.endOffsets(partitions).keySet(), "ends");
            reader.partitionsFor(topic);
        }
        admin.describeProducers(partitions(admin, Set.of(topic))).all().get();
    }

    /** The page of records: newest, oldest, from a time on, from an offset on, and those that come now. */
    private static void records(Broker broker, String argument) throws Exception {
        String topic = written(broker);
        Set<TopicPartition> all = partitions(broker.admin, Set.of(topic));
        TopicPartition first = new TopicPartition(topic, 0);
        for (String isolation : List.of("read_uncommitted", "read_committed")) {
            Map<String, Object> settings = reading();
            settings.put("isolation.level", isolation);
            try (Consumer<byte[], byte[]> reader = broker.consumer(settings)) {
                reader.assign(all);
                reader.seekToBeginning(all);
                Check.equal(RECORDS, Broker.take(reader, RECORDS).size(), "the oldest");
                Map<TopicPartition, Long> ends = reader.endOffsets(all);
                reader.assign(List.of(first));
                reader.seek(first, Math.max(0, ends.get(first) - 5));
                Broker.take(reader, 5);
                var times = reader.offsetsForTimes(Map.of(first, 0L));
                Check.equal(0L, times.get(first).offset(), "the first since 1970");
                reader.seekToEnd(List.of(first));
                Check.equal(ends.get(first), reader.position(first), "position");
                reader.poll(Duration.ofMillis(200));
            }
        }
    }

    /** The list of groups, and the page of one: members, offsets, lag. */
    @SuppressWarnings("deprecation") // consoles ask so
    private static void groups(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        String topic = written(broker), group = committed(broker, topic);
        Set<String> names = new TreeSet<>();
        admin.listConsumerGroups().all().get().forEach(each -> names.add(each.groupId()));
        admin.listGroups().all().get().forEach(each -> names.add(each.groupId()));
        Check.that(names.contains(group), "the group is listed");
        var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
        admin.describeConsumerGroups(names).all().get();
        admin.describeConsumerGroups(names, options).all().get();
        Map<String, ListConsumerGroupOffsetsSpec> every = names.stream()
                .collect(Collectors.toMap(each -> each, each -> new ListConsumerGroupOffsetsSpec()));
        admin.listConsumerGroupOffsets(every).all().get();
        var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Check.equal(1L, offsets.get(new TopicPartition(topic, 0)).offset(), "committed");
        try (Consumer<byte[], byte[]> reader = broker.consumer(reading())) {
            reader.endOffsets(offsets.keySet());
        }
    }

    /** All that is changed on the pages of a topic. */
    private static void changesTopics(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        String topic = Broker.name("console");
        var made = new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "86400000"));
        admin.createTopics(List.of(made)).all().get();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var current = admin.describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true))
                .all().get().get(resource);
        List<AlterConfigOp> changes = new ArrayList<>();
        current.entries().stream()
                .filter(each -> each.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
                .forEach(each -> changes.add(new AlterConfigOp(each, AlterConfigOp.OpType.DELETE)));
        changes.add(new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000000"), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        TopicDescription described = until(admin, topic, 3);
        Map<TopicPartition, Optional<NewPartitionReassignment>> same = new HashMap<>();
        described.partitions().forEach(each -> same.put(
                new TopicPartition(topic, each.partition()),
                Optional.of(new NewPartitionReassignment(each.replicas().stream().map(Node::id).toList()))));
        admin.alterPartitionReassignments(same).all().get();
        admin.electLeaders(ElectionType.PREFERRED, same.keySet()).partitions().get().values().forEach(failure ->
                Check.that(failure.isEmpty() || failure.get() instanceof ElectionNotNeededException, "" + failure));
        send(broker, topic);
        Map<TopicPartition, RecordsToDelete> none = partitions(admin, Set.of(topic)).stream()
                .collect(Collectors.toMap(each -> each, each -> RecordsToDelete.beforeOffset(1)));
        admin.deleteRecords(none).all().get();
        admin.deleteTopics(List.of(topic)).all().get();
    }

    /** All that is changed on the page of a group. */
    private static void changesGroups(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        String topic = written(broker), group = committed(broker, topic);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        Map<TopicPartition, OffsetAndMetadata> wanted =
                Map.of(first, new OffsetAndMetadata(3), second, new OffsetAndMetadata(4));
        admin.alterConsumerGroupOffsets(group, wanted).all().get();
        Check.equal(wanted, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(), "set");
        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    /** The pages of rights and quotas, of users, and of transactions. */
    private static void access(Broker broker, String argument) throws Exception {
        Admin admin = broker.admin;
        var user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "console-user"));
        for (Double rate : new Double[] {1_000_000.0, null}) {
            var op = new ClientQuotaAlteration.Op("producer_byte_rate", rate);
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(op)))).all().get();
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get();
        }
        admin.describeUserScramCredentials().all().get();
        admin.describeTransactions(admin.listTransactions().all().get().stream()
                .map(each -> each.transactionalId()).toList()).all().get();
        if (broker.isSecured()) {
            var pattern = new ResourcePattern(ResourceType.TOPIC, "console-", PatternType.PREFIXED);
            var entry = new AccessControlEntry("User:console-user", "*", AclOperation.READ, AclPermissionType.ALLOW);
            AclBinding binding = new AclBinding(pattern, entry);
            admin.createAcls(List.of(binding)).all().get();
            acls(broker, new AclBindingFilter(ResourcePatternFilter.ANY, AccessControlEntryFilter.ANY));
            admin.deleteAcls(List.of(binding.toFilter())).all().get();
        }
    }

    /** ACLs; where nobody decides by them, consoles take the brokers' word for it. */
    private static void acls(Broker broker, AclBindingFilter filter) throws Exception {
        var found = broker.admin.describeAcls(filter).values();
        if (broker.isSecured()) {
            found.get();
        } else {
            Check.refused(SecurityDisabledException.class, found);
        }
    }

    /** As a console sets up a reader of one page. */
    private static Map<String, Object> reading() {
        return new HashMap<>(Map.of(
                "allow.auto.create.topics", false, "max.poll.records", 100, "client.id", "console-reader"));
    }

    private static ConfigResource brokerOf(Node node) {
        return new ConfigResource(ConfigResource.Type.BROKER, node.idString());
    }

    private static String value(Collection<ConfigEntry> entries, String name) {
        return entries.stream().filter(each -> each.name().equals(name)).map(ConfigEntry::value).findAny().orElse(null);
    }

    private static Set<TopicPartition> partitions(Admin admin, Set<String> names) throws Exception {
        Set<TopicPartition> found = new HashSet<>();
        admin.describeTopics(names).allTopicNames().get().values().forEach(topic ->
                topic.partitions().forEach(each -> found.add(new TopicPartition(topic.name(), each.partition()))));
        return found;
    }

    /** A topic with records in all of its partitions. */
    private static String written(Broker broker) throws Exception {
        String topic = Broker.name("console");
        broker.admin.createTopics(List.of(new NewTopic(topic, Optional.of(3), Optional.empty()))).all().get();
        until(broker.admin, topic, 3);
        send(broker, topic);
        return topic;
    }

    private static void send(Broker broker, String topic) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < RECORDS; n++) {
            records.add(new ProducerRecord<>(topic, n % 3, ("key-" + n).getBytes(UTF_8), ("{\"n\": " + n + "}").getBytes(UTF_8)));
        }
        broker.produce(records, Map.of());
    }

    /** A group without members that has read one record of a topic. */
    private static String committed(Broker broker, String topic) {
        String group = Broker.name("console-group");
        try (Consumer<byte[], byte[]> reader = broker.consumer(Map.of("group.id", group))) {
            TopicPartition first = new TopicPartition(topic, 0);
            reader.assign(List.of(first));
            reader.commitSync(Map.of(first, new OffsetAndMetadata(1)));
        }
        return group;
    }

    /** The topic, once the brokers that are asked have so many partitions of it, each with a leader. */
    private static TopicDescription until(Admin admin, String topic, int partitions) throws Exception {
        long end = System.nanoTime() + Broker.DEADLINE.toNanos();
        while (true) {
            TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            boolean isLed = found.partitions().stream().allMatch(each -> each.leader() != null);
            if (found.partitions().size() == partitions && isLed) {
                return found;
            }
            Check.that(System.nanoTime() < end, topic + " has no " + partitions + " partitions");
        }
    }
}
