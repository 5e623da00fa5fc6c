{{/* What the pods of bridge, test and audit have in common. */}}
{{- define "account" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "" .Values.serviceAccount.create) }}
{{- end }}

{{- define "spec" -}}
automountServiceAccountToken: false
enableServiceLinks: false # variables of a Service timer-bridge begin like the bridge's settings
{{- with include "account" . }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch # the bridge's files keep their mode
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "env" -}}
- {name: TIMER_BRIDGE_BOOTSTRAP_SERVERS, value: {{ .Values.bootstrapServers | quote }}}
# A folder that the bridge makes, with mode 0700: the volume's root belongs to root.
- {name: TIMER_BRIDGE_DATA_DIR, value: /data/timers}
- {name: TIMER_BRIDGE_WORKERS, value: {{ .Values.workers | quote }}}
- {name: TIMER_BRIDGE_HTTP_HOST, value: 0.0.0.0}
- {name: TIMER_BRIDGE_HTTP_PORT, value: "8321"}
{{- if and .Values.ingress.enabled (not (hasKey (fromToml .Values.settings) "http_hosts")) }}
- {name: TIMER_BRIDGE_HTTP_HOSTS, value: {{ .Values.ingress.host | quote }}}
{{- end }}
{{- if .Values.standby.enabled }}
- {name: TIMER_BRIDGE_STANDBY, value: "true"}
- {name: TIMER_BRIDGE_STANDBY_CPU_PERCENT, value: {{ .Values.standby.cpuPercent | quote }}}
{{- end }}
{{- if .Values.auth.enabled }}
- {name: TIMER_BRIDGE_PAGE_OPERATOR_TOKENS, value: /etc/timer-bridge/tokens/operators}
- {name: TIMER_BRIDGE_PAGE_SECRET, value: /etc/timer-bridge/tokens/page-secret}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: settings, mountPath: /etc/timer-bridge/settings, readOnly: true}
{{- if .Values.kafkaSecret }}
- {name: kafka, mountPath: /etc/timer-bridge/kafka, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: settings, configMap: {name: {{ .Release.Name }}}}
{{- if .Values.kafkaSecret }}
- {name: kafka, secret: {secretName: {{ .Values.kafkaSecret }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
