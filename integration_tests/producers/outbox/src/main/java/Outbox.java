import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.transforms.outbox.EventRouter;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Scanner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;

/**
 * Stands for Kafka Connect between Debezium's source and Kafka: rows of an outbox table, as Debezium reports their
 * insertion, go through the transform and the converters of a connector's config.
 *
 * <p>Arguments: the config, bootstrap servers. Standard input: a row a line, its columns separated by tabs.
 */
public class Outbox {
    private static final Schema ROW = SchemaBuilder.struct().name("shop.public.outbox.Value")
            .field("id", Schema.STRING_SCHEMA)
            .field("aggregatetype", Schema.STRING_SCHEMA)
            .field("aggregateid", Schema.STRING_SCHEMA)
            .field("timer_id", Schema.STRING_SCHEMA)
            .field("deliver_ms", Schema.INT64_SCHEMA)
            .field("action", Schema.STRING_SCHEMA)
            .field("payload", Schema.OPTIONAL_STRING_SCHEMA)
            .build();
    private static final Schema CHANGE = SchemaBuilder.struct().name("shop.public.outbox.Envelope")
            .field("op", Schema.STRING_SCHEMA)
            .field("ts_ms", Schema.INT64_SCHEMA)
            .field("after", ROW)
            .build();

    public static void main(String[] arguments) throws Exception {
        var config = new HashMap<String, String>();
        JsonNode file = new ObjectMapper().readTree(Path.of(arguments[0]).toFile());
        file.get("config").fields().forEachRemaining(field -> config.put(field.getKey(), field.getValue().asText()));
        var router = new EventRouter<SourceRecord>();
        router.configure(under("transforms.outbox.", config));
        var key = (Converter) made("key.converter", config);
        key.configure(Map.of(), true);
        var value = (Converter) made("value.converter", config);
        value.configure(Map.of(), false);
        var header = (HeaderConverter) made("header.converter", config);
        header.configure(Map.of("converter.type", "header"));
        var bytes = new ByteArraySerializer();
        Map<String, Object> servers = Map.of("bootstrap.servers", arguments[1]);
        try (var producer = new KafkaProducer<>(servers, bytes, bytes); var rows = new Scanner(System.in)) {
            while (rows.hasNextLine()) {
                SourceRecord record = router.apply(inserted(rows.nextLine().split("\t")));
                var headers = new RecordHeaders();
                record.headers().forEach(each -> headers.add(each.key(),
                        header.fromConnectHeader(record.topic(), each.key(), each.schema(), each.value())));
                producer.send(new ProducerRecord<>(
                        record.topic(),
                        null,
                        key.fromConnectData(record.topic(), record.keySchema(), record.key()),
                        value.fromConnectData(record.topic(), record.valueSchema(), record.value()),
                        headers)).get();
            }
        }
    }

    private static Object made(String name, Map<String, String> config) throws Exception {
        return Utils.newInstance(config.get(name), Object.class);
    }

    private static Map<String, String> under(String prefix, Map<String, String> config) {
        var found = new HashMap<String, String>();
        config.forEach((name, value) -> {
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), value);
            }
        });
        return found;
    }

    private static SourceRecord inserted(String[] columns) {
        var row = new Struct(ROW);
        for (int at = 0; at < columns.length; at++) {
            var field = ROW.fields().get(at);
            row.put(field, field.schema().type() == Schema.Type.INT64 ? Long.valueOf(columns[at]) : columns[at]);
        }
        var change = new Struct(CHANGE).put("op", "c").put("ts_ms", System.currentTimeMillis()).put("after", row);
        return new SourceRecord(Map.of(), Map.of(), "shop.public.outbox", null, null, CHANGE, change);
    }
}
