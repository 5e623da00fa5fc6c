package example;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.state.Stores;

/** Reports orders that are not paid in time. Arguments: a file like unpaid-orders.properties. */
public class UnpaidOrders {
    static Topology topology(Properties config) {
        String wakeups = config.getProperty("wakeups.topic");
        long payWithinMs = Long.parseLong(config.getProperty("pay.within.ms"));
        var from = new StringDeserializer();
        var to = new StringSerializer();
        var orders = Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("unpaid"), Serdes.String(), Serdes.String());
        return new Topology()
                .addSource("orders", from, from, config.getProperty("orders.topic"))
                .addSource("wakeups", from, from, wakeups)
                .addProcessor("reminder", () -> new Reminder(wakeups, payWithinMs), "orders", "wakeups")
                .addStateStore(orders, "reminder")
                .addSink("timers", config.getProperty("timer.topic"), to, to, "reminder")
                .addSink("reports", config.getProperty("unpaid.topic"), to, to, "reminder");
    }

    public static void main(String[] arguments) throws Exception {
        var config = new Properties();
        try (var file = Files.newBufferedReader(Path.of(arguments[0]))) {
            config.load(file);
        }
        var streams = new KafkaStreams(topology(config), config);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
