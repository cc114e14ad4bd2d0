{{- define "sruserve.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "sruserve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sruserve.labels" -}}
{{ include "sruserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sruserve.metadata" -}}
name: {{ include "sruserve.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "sruserve.labels" . | nindent 2 }}
{{- end }}

{{- define "sruserve.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end }}

{{- define "sruserve.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The samples of this release's pods, as the PodMonitor labels them. */}}
{{- define "sruserve.samples" -}}
namespace="{{ .Release.Namespace }}",pod=~"{{ include "sruserve.name" . }}-.+"
{{- end }}
