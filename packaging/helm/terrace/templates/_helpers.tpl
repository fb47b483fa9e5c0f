{{- define "terrace.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "terrace.labels" -}}
app.kubernetes.io/name: terrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "terrace.selector" -}}
app.kubernetes.io/name: terrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* What a probe asks: /healthz where kubelet can reach it, else the command that answers the same. */ -}}
{{- define "terrace.probe" -}}
{{- if .Values.metrics.tlsSecret -}}
httpGet: { path: /healthz, port: metrics, scheme: HTTPS }
{{- else if .Values.hostNetwork -}}
httpGet: { path: /healthz, port: {{ .Values.metrics.port }}, host: 127.0.0.1 }
{{- else -}}
exec: { command: ["/usr/bin/terrace", "status"] }
{{- end }}
{{- end -}}
