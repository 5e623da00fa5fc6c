package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.util.backoff.FixedBackOff;

/** Schedules one payment, and handles payments; those that fail come back later. */
@Configuration
@EnableKafka
public class App {
    @Value("${servers:localhost:9092}")
    private String servers;

    @Value("${group:billing}")
    private String group;

    @KafkaListener(topics = "${topic:payments}", groupId = "${group:billing}")
    void pay(ConsumerRecord<byte[], byte[]> payment) {
        if (payment.value() != null && new String(payment.value(), UTF_8).startsWith("fail")) {
            throw new IllegalStateException("the bank is closed");
        }
    }

    @Bean
    KafkaTemplate<byte[], byte[]> kafkaTemplate() {
        var serializer = new ByteArraySerializer();
        return new KafkaTemplate<>(
                new DefaultKafkaProducerFactory<>(Map.of("bootstrap.servers", servers), serializer, serializer));
    }

    @Bean
    TimerTemplate timerTemplate(
            KafkaTemplate<byte[], byte[]> kafka, @Value("${timer-topic:timer.requests}") String timerTopic) {
        return new TimerTemplate(kafka, timerTopic);
    }

    @Bean
    TimerRetry timerRetry(
            KafkaTemplate<byte[], byte[]> kafka,
            TimerTemplate timers,
            @Value("${retry-delays-ms:10000,60000,600000}") long[] delaysMs) {
        List<Duration> delays = LongStream.of(delaysMs).mapToObj(Duration::ofMillis).toList();
        var deadLetters = new DeadLetterPublishingRecoverer(
                kafka, (record, error) -> new TopicPartition("DLQ." + group, -1)); // -1: by the key
        return new TimerRetry(timers, group, delays, deadLetters);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<byte[], byte[]> kafkaListenerContainerFactory(TimerRetry retry) {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", servers,
                "isolation.level", "read_committed", // the bridge delivers in transactions
                "auto.offset.reset", "earliest");
        var deserializer = new ByteArrayDeserializer();
        var factory = new ConcurrentKafkaListenerContainerFactory<byte[], byte[]>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(config, deserializer, deserializer));
        factory.setRecordFilterStrategy(retry);
        factory.setCommonErrorHandler(new DefaultErrorHandler(retry, new FixedBackOff(0, 0))); // no retry in place
        return factory;
    }

    public static void main(String[] arguments) throws InterruptedException {
        var context = new AnnotationConfigApplicationContext(App.class);
        context.registerShutdownHook();
        String topic = context.getEnvironment().getProperty("topic", "payments");
        context.getBean(TimerTemplate.class)
                .schedule("payment-7", Duration.ofSeconds(1), topic, bytes("7"), bytes("pay"), List.of())
                .join();
        Thread.currentThread().join(); // until a signal
    }

    private static byte[] bytes(String text) {
        return text.getBytes(UTF_8);
    }
}
