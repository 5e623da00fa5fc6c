"""RocketMQ's name server, broker and client, and the compiler for our client, as jars from Maven Central.

The list is what rocketmq-namesrv, rocketmq-broker and rocketmq-client resolve to, without annotations that are read by
compilers alone and without Netty's parts for other systems and protocols. ecj compiles where Java is a JRE, too.
"""

from pathlib import Path

from bridge.jars import JarList, ensure

ROCKETMQ_VERSION = "5.5.0"
CACHE = Path(".run/rocketmq-jars")

JARS = f"""
at.yawk.lz4:lz4-java:1.10.3
com.alibaba.fastjson2:fastjson2:2.0.59
com.alibaba:fastjson:1.2.83
com.alipay.sofa.common:sofa-common-tools:1.0.12
com.alipay.sofa:bolt:1.6.4
com.alipay.sofa:hessian:3.3.6
com.alipay.sofa:jraft-core:1.3.14
com.conversantmedia:disruptor:1.2.10
com.fasterxml.jackson.core:jackson-core:2.18.1
com.github.ben-manes.caffeine:caffeine:2.9.3
com.github.luben:zstd-jni:1.5.2-2
com.google.code.gson:gson:2.9.0
com.google.guava:failureaccess:1.0.1
com.google.guava:guava:32.0.1-jre
com.google.protobuf:protobuf-java-util:3.20.1
com.google.protobuf:protobuf-java:3.20.1
com.googlecode.concurrentlinkedhashmap:concurrentlinkedhashmap-lru:1.4.2
com.lmax:disruptor:3.3.7
com.squareup.okhttp3:okhttp:4.12.0
com.squareup.okio:okio-jvm:3.4.0
commons-beanutils:commons-beanutils:1.11.0
commons-cli:commons-cli:1.5.0
commons-codec:commons-codec:1.13
commons-collections:commons-collections:3.2.2
commons-digester:commons-digester:2.1
commons-io:commons-io:2.14.0
commons-lang:commons-lang:2.6
commons-logging:commons-logging:1.3.5
commons-validator:commons-validator:1.10.0
io.dropwizard.metrics:metrics-core:4.0.2
io.github.aliyunmq:rocketmq-logback-classic:1.0.1
io.github.aliyunmq:rocketmq-shaded-slf4j-api-bridge:1.0.0
io.github.aliyunmq:rocketmq-slf4j-api:1.0.1
io.grpc:grpc-api:1.53.0
io.grpc:grpc-context:1.53.0
io.grpc:grpc-core:1.53.0
io.grpc:grpc-netty-shaded:1.53.0
io.grpc:grpc-stub:1.53.0
io.netty:netty-buffer:4.1.130.Final
io.netty:netty-codec-haproxy:4.1.130.Final
io.netty:netty-codec-http2:4.1.130.Final
io.netty:netty-codec-http:4.1.130.Final
io.netty:netty-codec-socks:4.1.130.Final
io.netty:netty-codec:4.1.130.Final
io.netty:netty-common:4.1.130.Final
io.netty:netty-handler-proxy:4.1.130.Final
io.netty:netty-handler:4.1.130.Final
io.netty:netty-resolver:4.1.130.Final
io.netty:netty-transport-classes-epoll:4.1.130.Final
io.netty:netty-transport-native-unix-common:4.1.130.Final
io.netty:netty-transport:4.1.130.Final
io.openmessaging.storage:dledger:0.3.2
io.opentelemetry:opentelemetry-api-incubator:1.44.1-alpha
io.opentelemetry:opentelemetry-api:1.44.1
io.opentelemetry:opentelemetry-context:1.44.1
io.opentelemetry:opentelemetry-exporter-common:1.44.1
io.opentelemetry:opentelemetry-exporter-logging-otlp:1.44.1
io.opentelemetry:opentelemetry-exporter-logging:1.44.1
io.opentelemetry:opentelemetry-exporter-otlp-common:1.44.1
io.opentelemetry:opentelemetry-exporter-otlp:1.44.1
io.opentelemetry:opentelemetry-exporter-prometheus:1.44.1-alpha
io.opentelemetry:opentelemetry-exporter-sender-okhttp:1.44.1
io.opentelemetry:opentelemetry-sdk-common:1.44.1
io.opentelemetry:opentelemetry-sdk-extension-autoconfigure-spi:1.44.1
io.opentelemetry:opentelemetry-sdk-logs:1.44.1
io.opentelemetry:opentelemetry-sdk-metrics:1.44.1
io.opentelemetry:opentelemetry-sdk-trace:1.44.1
io.opentelemetry:opentelemetry-sdk:1.44.1
io.perfmark:perfmark-api:0.25.0
io.prometheus:prometheus-metrics-config:1.3.3
io.prometheus:prometheus-metrics-exporter-common:1.3.3
io.prometheus:prometheus-metrics-exporter-httpserver:1.3.3
io.prometheus:prometheus-metrics-exposition-formats:1.3.3
io.prometheus:prometheus-metrics-model:1.3.3
net.java.dev.jna:jna:4.2.2
org.apache.commons:commons-lang3:3.20.0
org.apache.rocketmq:rocketmq-auth:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-broker:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-client:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-common:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-controller:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-filter:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-namesrv:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-proto:2.1.2
org.apache.rocketmq:rocketmq-remoting:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-rocksdb:1.0.6
org.apache.rocketmq:rocketmq-srvutil:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-store:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-tiered-store:{ROCKETMQ_VERSION}
org.apache.rocketmq:rocketmq-tools:{ROCKETMQ_VERSION}
org.apache.tomcat:annotations-api:6.0.53
org.awaitility:awaitility:4.1.0
org.bouncycastle:bcpkix-jdk18on:1.83
org.bouncycastle:bcprov-jdk18on:1.83
org.bouncycastle:bcutil-jdk18on:1.83
org.eclipse.jdt:ecj:3.33.0
org.javassist:javassist:3.20.0-GA
org.jctools:jctools-core:2.1.1
org.jetbrains.kotlin:kotlin-stdlib:1.8.21
org.reflections:reflections:0.9.11
org.slf4j:jul-to-slf4j:2.0.6
org.slf4j:slf4j-api:2.0.3
org.yaml:snakeyaml:2.0
""".split()


def ensure_jars(java: str) -> Path:
    """The folder with exactly the jars of `JARS`, fetched when missing. Raises JarsError."""
    return ensure(JarList("RocketMQ", ROCKETMQ_VERSION, tuple(JARS)), CACHE, java=java)
