{{- /* The labels that a selector demands, as arguments of `kubectl label`; nothing if it cannot be met by labels alone. */ -}}
{{- define "switchboard.notes.labels" -}}
{{- $labels := list -}}
{{- $isPlain := true -}}
{{- range regexFindAll "([^,(]|[(][^)]*[)])+" . -1 -}}
{{- $part := trim . -}}
{{- if regexMatch "^[-A-Za-z0-9_./]+ *==? *[-A-Za-z0-9_.]*$" $part -}}
{{- $labels = append $labels (regexReplaceAll " *==? *" $part "=") -}}
{{- else if regexMatch "^[-A-Za-z0-9_./]+ +in *[(]" $part -}}
{{- $value := regexFind "[(][^,)]*" $part | trimPrefix "(" | trim -}}
{{- $labels = append $labels (printf "%s=%s" (regexFind "^[-A-Za-z0-9_./]+" $part) $value) -}}
{{- else if regexMatch "^[-A-Za-z0-9_./]+$" $part -}}
{{- $labels = append $labels (printf "%s=true" $part) -}}
{{- else if not (regexMatch "^(!|[-A-Za-z0-9_./]+ *!=|[-A-Za-z0-9_./]+ +notin)" $part) -}}
{{- $isPlain = false -}}
{{- end -}}
{{- end -}}
{{- if $isPlain -}}{{- join " " $labels -}}{{- end -}}
{{- end -}}

{{- /* How users reach the Service "default", or a node: "SCHEME PORT NAME HOST", the name being that of the port. */ -}}
{{- define "switchboard.notes.port" -}}
{{- $ports := .Values.ports -}}
{{- $name := ternary "websecure" "web" (default false $ports.websecure.expose.default) -}}
{{- if not .Values.service.enabled -}}
{{- $name = ternary "websecure" "web" (and (include "switchboard.websecure" .) (or $ports.websecure.hostPort .Values.deployment.hostNetwork) | not | not) -}}
{{- end -}}
{{- $port := get $ports $name -}}
{{- $scheme := ternary "https" "http" (or (eq $name "websecure") (ne $ports.web.tls "off")) -}}
{{- $number := int64 $port.exposedPort | toString -}}
{{- if not .Values.service.enabled -}}
{{- $number = ternary $port.port (default $port.port $port.hostPort) .Values.deployment.hostNetwork | int64 | toString -}}
{{- else if eq .Values.service.type "NodePort" -}}
{{- $number = "NODEPORT" -}}
{{- with $port.nodePort -}}{{- $number = int64 . | toString -}}{{- end -}}
{{- end -}}
{{- $host := "ADDRESS" -}}
{{- if and .Values.service.enabled (eq .Values.service.type "ClusterIP") -}}
{{- $host = "127.0.0.1" -}}
{{- $number = "8080" -}}
{{- end -}}
{{- printf "%s %s %s %s" $scheme $number $name $host -}}
{{- end -}}

{{- /* How to find the address of one Service: `name`, `type`, `namespace`, `ports`. */ -}}
{{- define "switchboard.notes.service" -}}
{{- if eq .type "LoadBalancer" }}
     kubectl --namespace {{ .namespace }} get service {{ .name }}      # EXTERNAL-IP
{{- else if eq .type "NodePort" }}
     kubectl --namespace {{ .namespace }} get service {{ .name }}      # PORT(S): after the colon is the port of every node
{{- if eq .policy "Local" }}
   Only nodes with a pod of this release answer.
{{- end }}
{{- else }}
   {{ .name }}.{{ .namespace }}.svc, port {{ .port }}, from inside the cluster only: its type is ClusterIP. From elsewhere:

     kubectl --namespace {{ .namespace }} port-forward service/{{ .name }} 8080:{{ .port }}      # then it is at 127.0.0.1:8080
{{- end }}
{{- end -}}

{{- /* The arguments of `switchboard connect` for a credential of the first source that users have. */ -}}
{{- define "switchboard.notes.credential" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- if ne (default "open" $access.mode) "open" -}}
{{- if (default dict $access.kubernetes).enabled }} --context CONTEXT
{{- else if $access.oidc }} --token-command 'COMMAND'
{{- else if (default dict $access.tickets).enabled }} --token-file ~/.ssh/switchboard-ticket
{{- end -}}
{{- end -}}
{{- $tls := include "switchboard.tls" . | fromYaml -}}
{{- if eq (default "off" $tls.client_auth) "required" }} --cert ~/.ssh/client.crt --key ~/.ssh/client.key
{{- end -}}
{{- end -}}
