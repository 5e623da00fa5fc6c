package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.utils.Utils;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.support.SendResult;

/** Sends requests to the timer topic. */
public class TimerTemplate {
    private final KafkaTemplate<byte[], byte[]> kafka;
    private final String timerTopic;

    public TimerTemplate(KafkaTemplate<byte[], byte[]> kafka, String timerTopic) {
        this.kafka = kafka;
        this.timerTopic = timerTopic;
    }

    /**
     * Deliver a record to a topic after a delay. A timer with the same id that is still pending is replaced.
     *
     * <p>The id chooses the partition, as in the Python client, so that a cancel by id finds the timer.
     *
     * @param headers delivered with the record
     */
    public CompletableFuture<SendResult<byte[], byte[]>> schedule(
            String id, Duration delay, String topic, byte[] key, byte[] value, Iterable<Header> headers) {
        int partitions = kafka.partitionsFor(timerTopic).size();
        int partition = Utils.toPositive(Utils.murmur2(id.getBytes(UTF_8))) % partitions;
        var request = new ProducerRecord<>(timerTopic, partition, key, value, headers);
        Map.of("timer-topic", topic, "timer-delay-ms", String.valueOf(delay.toMillis()), "timer-id", id)
                .forEach((name, text) -> request.headers().add(name, text.getBytes(UTF_8)));
        return kafka.send(request);
    }
}
