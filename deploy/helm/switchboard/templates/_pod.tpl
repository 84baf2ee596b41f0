{{- /* The volumes: the ConfigMap `config`, the Secrets of `tls` and `access`, and those of the values. */ -}}
{{- define "switchboard.volumes" -}}
{{- $tlsSecrets := include "switchboard.tlsSecrets" .root | fromYamlArray -}}
{{- $accessSecrets := include "switchboard.accessSecrets" .root | fromYamlArray -}}
volumes:
  - name: config
    configMap:
      name: {{ .config }}
  {{- range $index, $secret := $tlsSecrets }}
  - name: tls-{{ $index }}
    secret:
      secretName: {{ $secret }}
  {{- end }}
  {{- range $index, $secret := $accessSecrets }}
  - name: access-{{ $index }}
    secret:
      secretName: {{ $secret }}
  {{- end }}
  {{- range .root.Values.volumes }}
  - name: {{ .name | replace "." "-" }}
    {{- if eq .type "secret" }}
    secret:
      secretName: {{ .name }}
    {{- else if eq .type "emptyDir" }}
    emptyDir: {}
    {{- else }}
    configMap:
      name: {{ .name }}
    {{- end }}
  {{- end }}
{{- with .root.Values.deployment.additionalVolumes }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The paths of the volumes. */ -}}
{{- define "switchboard.volumeMounts" -}}
{{- $tlsSecrets := include "switchboard.tlsSecrets" . | fromYamlArray -}}
volumeMounts:
  - name: config
    mountPath: /etc/switchboard
    readOnly: true
  {{- range $index, $secret := $tlsSecrets }}
  - name: tls-{{ $index }}
    mountPath: /tls/{{ $secret }}
    readOnly: true
  {{- end }}
  {{- range $index, $secret := .Values.access.secrets }}
  - name: access-{{ $index }}
    mountPath: /access/{{ $secret }}
    readOnly: true
  {{- end }}
  {{- range .Values.volumes }}
  - name: {{ .name | replace "." "-" }}
    mountPath: {{ .mountPath }}
    readOnly: {{ ne .type "emptyDir" }}
  {{- end }}
{{- with .Values.additionalVolumeMounts }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The nodes that the pods may run on. */ -}}
{{- define "switchboard.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The pods, of a Deployment or a DaemonSet. */ -}}
{{- define "switchboard.pod" -}}
metadata:
  labels:
    {{- include "switchboard.selectorLabels" . | nindent 4 }}
    {{- with .Values.deployment.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or .Values.deployment.rollOnConfigChange .Values.deployment.podAnnotations }}
  annotations:
    {{- if .Values.deployment.rollOnConfigChange }}
    checksum/config: {{ include "switchboard.config" . | sha256sum }}
    {{- end }}
    {{- with .Values.deployment.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "switchboard.serviceAccountName" . }}
  automountServiceAccountToken: {{ eq (include "switchboard.cluster" .) "true" }}
  # The kubelet would otherwise set SWITCHBOARD_PORT and the like for our own Service, and the proxy reads
  # SWITCHBOARD_* as configuration.
  enableServiceLinks: false
  # At least as long as a drain may take: {{ include "switchboard.drainSeconds" . }} s.
  terminationGracePeriodSeconds: {{ include "switchboard.gracePeriod" . }}
  {{- $_ := include "switchboard.hostPorts" . }}
  {{- if .Values.deployment.hostNetwork }}
  hostNetwork: true
  {{- end }}
  {{- with .Values.deployment.dnsPolicy }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- with .Values.deployment.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.deployment.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: switchboard
      image: {{ include "switchboard.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --config=/etc/switchboard/switchboard.yaml
        {{- with .Values.deployment.additionalArguments }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if or .Values.env (include "switchboard.replicas" .) }}
      env:
        {{- if include "switchboard.replicas" . }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: web
          containerPort: {{ .Values.ports.web.port }}
          {{- with .Values.ports.web.hostPort }}
          hostPort: {{ . }}
          {{- end }}
          protocol: TCP
        {{- if include "switchboard.websecure" . }}
        - name: websecure
          containerPort: {{ .Values.ports.websecure.port }}
          {{- with .Values.ports.websecure.hostPort }}
          hostPort: {{ . }}
          {{- end }}
          protocol: TCP
        {{- end }}
        - name: metrics
          containerPort: {{ .Values.ports.metrics.port }}
          protocol: TCP
      {{- if .Values.deployment.drainHook }}
      lifecycle:
        preStop:
          exec:
            command:
              - /usr/local/bin/switchboard
              - drain
              - --admin={{ .Values.ports.web.address }}:{{ .Values.ports.metrics.port }}
              - --wait
              - --timeout={{ include "switchboard.drainWait" . }}
      {{- end }}
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      {{- include "switchboard.volumeMounts" . | nindent 6 }}
    {{- with .Values.deployment.additionalContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "switchboard.volumes" (dict "root" . "config" (include "switchboard.fullname" .)) | nindent 2 }}
  {{- with include "switchboard.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if ne .Values.deployment.kind "DaemonSet" }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- range .Values.topologySpreadConstraints }}
    {{- if not .labelSelector }}
    {{- $_ := set . "labelSelector" (dict "matchLabels" (include "switchboard.selectorLabels" $ | fromYaml)) }}
    {{- end }}
    - {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- else }}
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    # pod-template-hash: pods of the last revision may drain for an hour, and must not push the new ones together.
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: ScheduleAnyway
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels:
          {{- include "switchboard.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- end }}
{{- end -}}
