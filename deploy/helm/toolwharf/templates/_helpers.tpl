{{- define "toolwharf.name" -}}
{{- if contains "toolwharf" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-toolwharf" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- define "toolwharf.selector" -}}
app.kubernetes.io/name: toolwharf
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}
{{- define "toolwharf.labels" -}}
{{ include "toolwharf.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- define "toolwharf.servers" -}}
{{ .Values.servers.namespace | default .Release.Namespace }}
{{- end }}
{{- define "toolwharf.usesApi" -}}
{{ if or .Values.provider.enabled .Values.resources.enabled }}true{{ end }}
{{- end }}
