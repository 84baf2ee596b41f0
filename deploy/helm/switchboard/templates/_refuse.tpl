{{- /* The faults that `switchboard check` would find in the configuration, as far as values can show them, in its words. The
schema of values knows the form of each key; here are the bounds, the texts that a pattern cannot describe, and what keys say
together. deploy/checks/matrix.py compares the sentences with those of the program. */ -}}
{{- define "switchboard.refuse" -}}
{{- $faults := dict "all" list -}}
{{- include "switchboard.refuseAbsent" (dict "root" .root "to" $faults) -}}
{{- include "switchboard.refuseDurations" (dict "config" .config "to" $faults) -}}
{{- include "switchboard.refuseListen" (dict "config" .config "to" $faults) -}}
{{- include "switchboard.refuseTls" (dict "config" .config "to" $faults) -}}
{{- include "switchboard.refuseAccess" (dict "config" .config "to" $faults) -}}
{{- include "switchboard.refuseAllowlist" (dict "config" .config "to" $faults) -}}
{{- include "switchboard.refusePods" (dict "root" .root "config" .config "to" $faults) -}}
{{- with $faults.all -}}
{{- fail (printf "the configuration has errors, as `switchboard check` reports them:\n  %s" (uniq . | join "\n  ")) -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.fault" -}}
{{- $_ := set .to "all" (append .to.all (printf "%s: %s" .at .is)) -}}
{{- end -}}

{{- /* Keys that restrict, with null in their place. */ -}}
{{- define "switchboard.refuseAbsent" -}}
{{- $to := .to -}}
{{- $reason := "it restricts, and without a value it does not: give it one, or remove the key" -}}
{{- $config := .root.Values.config -}}
{{- range $path := list "admin_scrape" "tls.client_auth" "tls.crl" "access.mode" "access.cleartext" "access.hide_names" "access.on_expiry" "allowlist.kubernetes.namespaces" "allowlist.kubernetes.namespace_selector" "allowlist.kubernetes.pods.namespaces" "allowlist.kubernetes.pods.selector" "access.kubernetes.permission.name" "allowlist.kubernetes.allowed_cidrs" "limits.ceiling.download" "limits.ceiling.upload" "limits.ceiling.ssh_only" -}}
{{- $parts := splitList "." $path -}}
{{- $places := list $config -}}
{{- if eq (first $parts) "access" -}}
{{- $places = append $places (dict "access" $.root.Values.access) -}}
{{- end -}}
{{- range $place := $places -}}
{{- range initial $parts -}}
{{- if kindIs "map" $place -}}{{- $place = get $place . -}}{{- end -}}
{{- end -}}
{{- if kindIs "map" $place -}}
{{- if and (hasKey $place (last $parts)) (kindIs "invalid" (get $place (last $parts))) -}}
{{- include "switchboard.fault" (dict "to" $to "at" $path "is" $reason) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Helm has removed the null: the chart's own default is gone, and so is any list of an earlier file. */ -}}
{{- $kubernetes := dict "namespaces" list -}}
{{- if kindIs "map" $config.allowlist -}}{{- $kubernetes = $config.allowlist.kubernetes -}}{{- end -}}
{{- if kindIs "map" $kubernetes -}}
{{- if and $kubernetes.enabled (not (hasKey $kubernetes "namespaces")) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "allowlist.kubernetes.namespaces" "is" $reason) -}}
{{- end -}}
{{- end -}}
{{- $ports := $config.listen -}}
{{- if kindIs "map" $ports -}}{{- $ports = list $ports -}}{{- end -}}
{{- $targets := list -}}
{{- if kindIs "map" $config.allowlist -}}{{- $targets = $config.allowlist.static -}}{{- end -}}
{{- range $where, $list := dict "listen" $ports "allowlist.static" $targets -}}
{{- if kindIs "slice" $list -}}
{{- range $index, $entry := $list -}}
{{- range $key := list "tls" "proxy_protocol" "trusted_proxies" "allowed_clients" "allowed_users" "allowed_groups" -}}
{{- if kindIs "map" $entry -}}
{{- if and (hasKey $entry $key) (kindIs "invalid" (get $entry $key)) -}}
{{- $at := ternary (printf "listen.%s" $key) (printf "%s[%d].%s" $where $index $key) (and (eq $where "listen") (kindIs "map" $config.listen)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" $at "is" $reason) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A duration as the program prints one. */ -}}
{{- define "switchboard.shownDuration" -}}
{{- $seconds := float64 . -}}
{{- $part := dict "of" $seconds "unit" "s" -}}
{{- if and (lt $seconds 1.0) (gt $seconds 0.0) -}}
{{- $part = dict "of" (mulf $seconds 1000.0) "unit" "ms" -}}
{{- end -}}
{{- if eq (floor $part.of) $part.of -}}{{- int64 $part.of -}}{{- else -}}{{- $part.of -}}{{- end -}}{{- $part.unit -}}
{{- end -}}

{{- /* One duration: `text`, its bounds in seconds, and the sentences about them. 0 as `least`: none. */ -}}
{{- define "switchboard.refuseDuration" -}}
{{- if kindIs "string" .text -}}
{{- if ne .text (default "" .word) -}}
{{- $seconds := include "switchboard.duration" .text | float64 -}}
{{- $alternative := "" -}}
{{- with .word -}}{{- $alternative = printf ", or `%s`" . -}}{{- end -}}
{{- $reason := "" -}}
{{- if gt $seconds 31536000.0 -}}
{{- $reason = "must be at most 365d" -}}
{{- else if and .positive (eq $seconds 0.0) -}}
{{- $reason = "must be more than 0s" -}}
{{- else if lt $seconds (default 0 .least | float64) -}}
{{- $reason = .tooShort -}}
{{- else if gt $seconds (default 31536000 .most | float64) -}}
{{- $reason = .tooLong -}}
{{- end -}}
{{- with $reason -}}
{{- include "switchboard.fault" (dict "to" $.to "at" $.at "is" (printf "%s%s (found `%s`)" . $alternative $.text)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.refuseDurations" -}}
{{- $to := .to -}}
{{- $config := .config -}}
{{- $hour := dict "to" $to "most" 3600 "tooLong" "must be at most 1h" -}}
{{- $lost := "must be at most 1d: a user keeps a lost right for that long" -}}
{{- range $key := list "delay" "timeout" "spread" "resumable_spread" -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" (printf "drain.%s" $key) "text" (dig "drain" $key nil $config)) -}}
{{- end -}}
{{- range $key := list "request_header" "tls_handshake" "connect" "dial" "ssh_identification" -}}
{{- include "switchboard.refuseDuration" (merge (dict "at" (printf "timeouts.%s" $key) "text" (dig "timeouts" $key nil $config) "positive" true) $hour) -}}
{{- end -}}
{{- include "switchboard.refuseDuration" (merge (dict "at" "tls.poll" "text" (dig "tls" "poll" nil $config) "positive" true) $hour) -}}
{{- range $key := list "wait_for_ready" "wake_timeout" -}}
{{- include "switchboard.refuseDuration" (merge (dict "at" (printf "allowlist.kubernetes.%s" $key) "text" (dig "allowlist" "kubernetes" $key nil $config)) $hour) -}}
{{- end -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "timeouts.idle" "text" (dig "timeouts" "idle" nil $config) "positive" true "word" "off") -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "timeouts.half_closed" "text" (dig "timeouts" "half_closed" nil $config) "positive" true) -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "limits.tunnel.lifetime" "text" (dig "limits" "tunnel" "lifetime" nil $config) "positive" true "word" "unlimited") -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "access.kubernetes.recheck" "text" (dig "access" "kubernetes" "recheck" nil $config) "least" 10 "tooShort" "must be at least 10s: answers count for that long" "most" 86400 "tooLong" $lost) -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "access.kubernetes.stale" "text" (dig "access" "kubernetes" "stale" nil $config) "most" 86400 "tooLong" $lost) -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" "access.tickets.ttl" "text" (dig "access" "tickets" "ttl" nil $config) "least" 600 "tooShort" "must be at least 10m" "most" 86400 "tooLong" "must be at most 1d") -}}
{{- $one := include "switchboard.duration" (dig "timeouts" "connect" "3s" $config) | float64 -}}
{{- $all := include "switchboard.duration" (dig "timeouts" "dial" "10s" $config) | float64 -}}
{{- if and (gt $one $all) (gt $all 0.0) (le $one 3600.0) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (ternary "timeouts.connect" "timeouts.dial" (hasKey (default dict $config.timeouts) "connect")) "is" (printf "one try (%s) may not take longer than the whole dial (%s)" (include "switchboard.shownDuration" $one) (include "switchboard.shownDuration" $all))) -}}
{{- end -}}
{{- end -}}

{{- /* A fault of a network, or nothing. */ -}}
{{- define "switchboard.networkFault" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- $expected := "expected a network such as `10.0.0.0/8` or `fd00::/8`" -}}
{{- $address := first (splitList "/" .) -}}
{{- $length := last (splitList "/" .) | int -}}
{{- if contains ":" $address -}}
{{- if or (gt $length 128) (not (include "switchboard.isIpv6" $address)) -}}
{{- printf "%s (found `%s`)" $expected . -}}
{{- else if and (regexMatch (printf "^(0*:)*:?[fF]{4}:(%s[.]){3}%s$" $octet $octet) $address) (ge $length 96) -}}
{{- printf "expected an IPv4 network in its own form, `%s/%d` (found `%s`)" (last (splitList ":" $address)) (int (sub $length 96)) . -}}
{{- end -}}
{{- else if or (gt $length 32) (not (regexMatch (printf "^(%s[.]){3}%s$" $octet $octet) $address)) -}}
{{- printf "%s (found `%s`)" $expected . -}}
{{- end -}}
{{- end -}}

{{- /* True for the text of an IPv6 address. */ -}}
{{- define "switchboard.isIpv6" -}}
{{- $text := regexReplaceAll "(:)((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$" . "${1}0:0" -}}
{{- $groups := splitList ":" $text | compact | len -}}
{{- if regexMatch "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*$" $text -}}
{{- if eq $groups 8 -}}true{{- end -}}
{{- else if regexMatch "^([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*)?::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*)?$" $text -}}
{{- if lt $groups 8 -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* True for the text of an IP address with a port. */ -}}
{{- define "switchboard.isAddress" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" -}}
{{- if le (regexFind "[0-9]+$" . | int64) 65535 -}}
{{- if hasPrefix "[" $host -}}
{{- include "switchboard.isIpv6" (regexReplaceAll "%[0-9]+$" (trimAll "[]" $host) "") -}}
{{- else if regexMatch (printf "^(%s[.]){3}%s$" $octet $octet) $host -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.refuseNetworks" -}}
{{- $to := .to -}}
{{- $at := .at -}}
{{- if kindIs "slice" .list -}}
{{- range $index, $network := .list -}}
{{- with include "switchboard.networkFault" $network -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s[%d]" $at $index) "is" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* True if sockets at two addresses collide: one number, and one address or one that includes the other. */ -}}
{{- define "switchboard.collide" -}}
{{- $hosts := list -}}
{{- range list .one .other -}}
{{- $hosts = append $hosts (regexReplaceAll ":[0-9]+$" . "") -}}
{{- end -}}
{{- $number := regexFind "[0-9]+$" .one -}}
{{- if and (eq $number (regexFind "[0-9]+$" .other)) (ne $number "0") -}}
{{- $isV4 := or (and (eq (first $hosts) "0.0.0.0") (not (hasPrefix "[" (last $hosts)))) (and (eq (last $hosts) "0.0.0.0") (not (hasPrefix "[" (first $hosts)))) -}}
{{- if or (eq (first $hosts) (last $hosts)) (has "[::]" $hosts) $isV4 -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Why two sockets cannot have these addresses. */ -}}
{{- define "switchboard.taken" -}}
{{- $hint := "" -}}
{{- if and (ne (hasPrefix "[" .one) (hasPrefix "[" .other)) (or (hasPrefix "[::]:" .one) (hasPrefix "[::]:" .other)) -}}
{{- $hint = " (`[::]` takes IPv4, too)" -}}
{{- end -}}
{{- printf "%s%s is taken by %s" .one $hint .other -}}
{{- end -}}

{{- define "switchboard.refuseListen" -}}
{{- $to := .to -}}
{{- $config := .config -}}
{{- $ports := include "switchboard.ports" $config | fromYamlArray -}}
{{- if and (kindIs "slice" $config.listen) (not $ports) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "listen" "is" "at least one address is needed") -}}
{{- end -}}
{{- $before := list -}}
{{- range $index, $port := $ports -}}
{{- $at := ternary (printf "listen[%d]" $index) "listen" (kindIs "slice" $config.listen) -}}
{{- if not (include "switchboard.isAddress" $port.address) -}}
{{- include "switchboard.fault" (dict "to" $to "at" $at "is" (printf "expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `%s`)" $port.address)) -}}
{{- end -}}
{{- if and (ne (default "off" $port.tls) "off") (not (dig "tls" "certificates" list $config)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.tls" $at) "is" "needs `tls.certificates`") -}}
{{- end -}}
{{- include "switchboard.refuseNetworks" (dict "to" $to "at" (printf "%s.trusted_proxies" $at) "list" $port.trusted_proxies) -}}
{{- if and (eq (default "off" $port.proxy_protocol) "required") (not $port.trusted_proxies) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.proxy_protocol" $at) "is" "needs `trusted_proxies`: without it any client could claim any address") -}}
{{- else if and (eq (default "off" $port.proxy_protocol) "off") $port.trusted_proxies (not $port.websocket) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.trusted_proxies" $at) "is" "has no effect without `proxy_protocol: required` or `websocket`") -}}
{{- end -}}
{{- with $port.websocket -}}
{{- if not (regexMatch "^/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*/?)?$" (toString .path)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.websocket.path" $at) "is" (printf "expected a path such as `/ssh`, of letters, digits and `-._~/` (found `%v`)" .path)) -}}
{{- end -}}
{{- if and .trusted_tls (not $port.trusted_proxies) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.websocket.trusted_tls" $at) "is" "needs `trusted_proxies`: without it any client could count as one of TLS") -}}
{{- end -}}
{{- end -}}
{{- range $other := $before -}}
{{- $isPair := and (hasPrefix "[::]:" $port.address) (hasPrefix "0.0.0.0:" $other.address) | or (and (hasPrefix "[::]:" $other.address) (hasPrefix "0.0.0.0:" $port.address)) -}}
{{- if and (include "switchboard.collide" (dict "one" $port.address "other" $other.address)) (not (and $port.reuse_port $other.reuse_port (ne $port.address $other.address))) (not $isPair) -}}
{{- $is := printf "%s is on line" $port.address -}}
{{- if ne $port.address $other.address -}}
{{- $is = include "switchboard.taken" (dict "one" $port.address "other" $other.address) -}}
{{- end -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.address" $at) "is" $is) -}}
{{- end -}}
{{- end -}}
{{- $before = append $before $port -}}
{{- end -}}
{{- $admin := default "0.0.0.0:9090" $config.admin -}}
{{- if not (include "switchboard.isAddress" $admin) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "admin" "is" (printf "expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `%s`)" $admin)) -}}
{{- end -}}
{{- range $ports -}}
{{- if include "switchboard.collide" (dict "one" $admin "other" .address) -}}
{{- $is := printf "`listen` and `admin` are both %s" $admin -}}
{{- if ne $admin .address -}}
{{- $is = printf "%s of `listen`" (include "switchboard.taken" (dict "one" $admin "other" .address)) -}}
{{- end -}}
{{- include "switchboard.fault" (dict "to" $to "at" "admin" "is" $is) -}}
{{- end -}}
{{- end -}}
{{- include "switchboard.refuseNetworks" (dict "to" $to "at" "admin_scrape" "list" $config.admin_scrape) -}}
{{- end -}}

{{- /* The ports of `listen`, each as a map. */ -}}
{{- define "switchboard.ports" -}}
{{- $ports := list -}}
{{- $listen := .listen -}}
{{- if not (kindIs "slice" $listen) -}}{{- $listen = list $listen -}}{{- end -}}
{{- range $listen -}}
{{- if kindIs "map" . -}}{{- $ports = append $ports . -}}{{- else -}}{{- $ports = append $ports (dict "address" .) -}}{{- end -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end -}}

{{- define "switchboard.refuseTls" -}}
{{- $to := .to -}}
{{- $tls := default dict .config.tls -}}
{{- if eq (default "off" $tls.client_auth) "off" -}}
{{- if $tls.client_ca -}}
{{- include "switchboard.fault" (dict "to" $to "at" "tls.client_ca" "is" "has no effect without `client_auth`") -}}
{{- else if $tls.crl -}}
{{- include "switchboard.fault" (dict "to" $to "at" "tls.crl" "is" "has no effect without `client_auth`") -}}
{{- end -}}
{{- else if not $tls.client_ca -}}
{{- include "switchboard.fault" (dict "to" $to "at" "tls" "is" "`client_auth` needs `client_ca`: the authorities that issue client certificates") -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.refuseAccess" -}}
{{- $to := .to -}}
{{- $config := .config -}}
{{- $access := default dict $config.access -}}
{{- $kubernetes := default dict $access.kubernetes -}}
{{- $tickets := default dict $access.tickets -}}
{{- $proves := or $kubernetes.enabled $access.oidc $access.users $tickets.enabled -}}
{{- $sshKeys := default dict $access.ssh_keys -}}
{{- $provesAny := or $proves $access.ssh_authorities $sshKeys.enabled -}}
{{- $takes := hasKey $config "anchors" -}}
{{- range dig "allowlist" "static" list $config -}}
{{- if .dials_in -}}{{- $takes = true -}}{{- end -}}
{{- end -}}
{{- if and (ne (default "open" $access.mode) "open") (not $provesAny) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.mode" "is" "no user can be proved: it needs `kubernetes`, `oidc`, `users`, `tickets`, `ssh_keys` or `ssh_authorities`") -}}
{{- else if and $takes (not $proves) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access" "is" "no anchor can prove its user: it needs `kubernetes`, `oidc`, `users` or `tickets`") -}}
{{- end -}}
{{- if and (dig "allowlist" "report_only" false $config) (eq (default "open" $access.mode) "enforce") -}}
{{- include "switchboard.fault" (dict "to" $to "at" "allowlist.report_only" "is" "what `access.mode: enforce` refuses is not served: set `access.mode: report`, or this to false") -}}
{{- end -}}
{{- if and (hasKey $kubernetes "audiences") (not $kubernetes.audiences) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.audiences" "is" "at least one audience is needed; `\"\"` is the API server's own") -}}
{{- end -}}
{{- with $kubernetes.permission -}}
{{- if kindIs "map" . -}}
{{- $group := default "" .group -}}
{{- $core := splitList " " "bindings configmaps endpoints events limitranges namespaces persistentvolumeclaims pods podtemplates replicationcontrollers resourcequotas secrets serviceaccounts services" -}}
{{- if contains "." .resource -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.permission.resource" "is" "the resource has no dot: what follows it is the `group`") -}}
{{- else if and (not $group) (not (has .resource $core)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.permission.resource" "is" (printf "`%s` is no resource of the core group: its API group is missing, as `group`" .resource)) -}}
{{- else if and (eq (default "service" .name) "pod") (or $group (ne .resource "pods")) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.permission.name" "is" "`pod` is for the resource `pods`: nothing else has its name") -}}
{{- else if and (eq (default "service" .name) "owner") (not $group) (has .resource (list "pods" "services")) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.permission.name" "is" (printf "`owner` is the object that runs the pods, and not one of the %s" .resource)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $own := $kubernetes.kubeconfig -}}
{{- $shared := dig "allowlist" "kubernetes" "kubeconfig" "" $config -}}
{{- $reads := or $kubernetes.enabled $tickets.enabled $sshKeys.enabled -}}
{{- if and $own (not $reads) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "access.kubernetes.kubeconfig" "is" "nothing that is enabled reads this cluster") -}}
{{- end -}}
{{- if and $shared (not (dig "allowlist" "kubernetes" "enabled" false $config)) (or $own (not $reads)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "allowlist.kubernetes.kubeconfig" "is" "nothing that is enabled reads this cluster") -}}
{{- end -}}
{{- $issuers := list -}}
{{- range $index, $issuer := default list $access.oidc -}}
{{- $at := printf "access.oidc[%d]" $index -}}
{{- if has $issuer.issuer $issuers -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.issuer" $at) "is" "the same issuer is on line") -}}
{{- end -}}
{{- $issuers = append $issuers $issuer.issuer -}}
{{- if not $issuer.audiences -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.audiences" $at) "is" "at least one audience is needed: a token for another service proves no user here") -}}
{{- end -}}
{{- $isUrl := contains "://" $issuer.jwks -}}
{{- $isLocal := regexMatch "^http://(localhost|127[.][0-9.]+|[[]::1[]])(:[0-9]+)?(/|$)" $issuer.jwks -}}
{{- if and $isUrl (hasPrefix "http://" $issuer.jwks) (not $isLocal) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.jwks" $at) "is" (printf "the keys would cross the network in clear: `http://` is for loopback addresses only (found `%s`)" $issuer.jwks)) -}}
{{- else if and $isUrl (not (regexMatch "^https?://[^/@]+" $issuer.jwks)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.jwks" $at) "is" (printf "expected the path of a file, or a URL such as `https://id.example.com/keys` (found `%s`)" $issuer.jwks)) -}}
{{- else if and $issuer.ca (not $isUrl) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.ca" $at) "is" "has no effect with a `jwks` that is a file") -}}
{{- else if and $issuer.ca $isLocal -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.ca" $at) "is" "has no effect with a `jwks` at `http://`") -}}
{{- end -}}
{{- include "switchboard.refusePrefix" (dict "to" $to "at" (printf "%s.username_prefix" $at) "text" $issuer.username_prefix) -}}
{{- end -}}
{{- include "switchboard.refusePrefix" (dict "to" $to "at" "access.users.username_prefix" "text" (dig "users" "username_prefix" "" $access)) -}}
{{- include "switchboard.refusePrefix" (dict "to" $to "at" "access.ssh_authorities.username_prefix" "text" (dig "ssh_authorities" "username_prefix" "" $access)) -}}
{{- include "switchboard.refusePrefix" (dict "to" $to "at" "access.ssh_keys.username_prefix" "text" $sshKeys.username_prefix) -}}
{{- end -}}

{{- define "switchboard.refusePrefix" -}}
{{- $text := default "" .text -}}
{{- if or (gt (len $text) 64) (ne (trim $text) $text) (hasPrefix "system:" (lower $text)) -}}
{{- include "switchboard.fault" (dict "to" .to "at" .at "is" "expected the beginning of a name, such as `oidc:`: at most 64 bytes, and not `system:`") -}}
{{- end -}}
{{- end -}}

{{- /* A DNS name, without the dots at its ends. */ -}}
{{- define "switchboard.isDomain" -}}
{{- $name := trimAll "." . -}}
{{- if and (le (len $name) 253) (regexMatch "^[-_A-Za-z0-9]{1,63}([.][-_A-Za-z0-9]{1,63})*$" $name) -}}true{{- end -}}
{{- end -}}

{{- define "switchboard.refuseAllowlist" -}}
{{- $to := .to -}}
{{- $config := .config -}}
{{- $kubernetes := default dict (dig "allowlist" "kubernetes" dict $config) -}}
{{- $expected := "expected a DNS name such as `ssh.example.com` (found `%s`)" -}}
{{- range $index, $suffix := default list $kubernetes.public_suffixes -}}
{{- if not (include "switchboard.isDomain" $suffix) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "allowlist.kubernetes.public_suffixes[%d]" $index) "is" (printf $expected $suffix)) -}}
{{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- range $index, $kind := default list $kubernetes.workload_kinds -}}
{{- if has $kind.name $kinds -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "allowlist.kubernetes.workload_kinds[%d].name" $index) "is" (printf "%s is on line" $kind.name)) -}}
{{- end -}}
{{- $kinds = append $kinds $kind.name -}}
{{- with $kind.patch -}}
{{- $patch := fromJson . -}}
{{- $isMap := or (not (hasKey $patch "metadata")) (kindIs "map" $patch.metadata) -}}
{{- if or (hasKey $patch "Error") (not $isMap) (not (regexMatch ":\\s*[^{\\s]" .)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "allowlist.kubernetes.workload_kinds[%d].patch" $index) "is" "expected a merge patch in JSON, such as `{\"spec\": {\"paused\": false}}`") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $kubernetes.cluster_domain -}}
{{- if not (include "switchboard.isDomain" .) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "allowlist.kubernetes.cluster_domain" "is" (printf $expected .)) -}}
{{- end -}}
{{- end -}}
{{- with $kubernetes.annotation_prefix -}}
{{- if not (include "switchboard.isDomain" (trimSuffix "/" .)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "allowlist.kubernetes.annotation_prefix" "is" (printf "expected a DNS name with a slash, such as `switchboard.dev/` (found `%s`)" .)) -}}
{{- end -}}
{{- end -}}
{{- include "switchboard.refuseNetworks" (dict "to" $to "at" "allowlist.kubernetes.allowed_cidrs" "list" $kubernetes.allowed_cidrs) -}}
{{- $knows := false -}}
{{- range include "switchboard.ports" $config | fromYamlArray -}}
{{- if ne (default "off" .tls) "off" -}}{{- $knows = ne (dig "tls" "client_auth" "off" $config) "off" -}}{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range $index, $target := default list (dig "allowlist" "static" list $config) -}}
{{- $at := printf "allowlist.static[%d]" $index -}}
{{- $name := regexReplaceAll "[.]:" (lower $target.name) ":" -}}
{{- $host := regexReplaceAll ":[0-9]+$" $name "" -}}
{{- $number := regexFind "[0-9]+$" $name | int64 -}}
{{- $isHost := ternary (include "switchboard.isIpv6" (trimAll "[]" $host)) (include "switchboard.isDomain" $host) (hasPrefix "[" $host) -}}
{{- if or (lt $number 1) (gt $number 65535) (not $isHost) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.name" $at) "is" "expected the host:port that clients ask for: ") -}}
{{- else if has $name $names -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.name" $at) "is" (printf "%s is on line" $name)) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- if hasKey $target "dials_in" -}}
{{- if hasKey $target "addresses" -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.addresses" $at) "is" "a target that dials in has no address: remove this, or `dials_in`") -}}
{{- end -}}
{{- if hasKey $target "send_proxy_protocol" -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.send_proxy_protocol" $at) "is" "has no effect on a target that dials in") -}}
{{- end -}}
{{- if not (or (hasKey $target.dials_in "users") (hasKey $target.dials_in "groups")) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.dials_in" $at) "is" "`users` or `groups` is needed: who may serve the target") -}}
{{- end -}}
{{- else if not (hasKey $target "addresses") -}}
{{- include "switchboard.fault" (dict "to" $to "at" $at "is" "`addresses` is missing, or `dials_in` for a target that dials in") -}}
{{- else if not $target.addresses -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.addresses" $at) "is" "at least one address is needed") -}}
{{- end -}}
{{- range $number, $address := default list $target.addresses -}}
{{- if not (include "switchboard.isAddress" $address) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.addresses[%d]" $at $number) "is" (printf "names are not resolved: give IP:port (found `%s`)" $address)) -}}
{{- else if eq (regexFind "[0-9]+$" $address | int64) 0 -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.addresses[%d]" $at $number) "is" (printf "port 0 cannot be dialled (found `%s`)" $address)) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $target "allowed_clients") (not $knows) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.allowed_clients" $at) "is" "no client has a certificate: `allowed_clients` needs `tls.client_auth` and a port with `tls`") -}}
{{- end -}}
{{- range $key := list "allowed_clients" "allowed_users" "allowed_groups" -}}
{{- if and (hasKey $target $key) (not (get $target $key)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.%s" $at $key) "is" (ternary "at least one name is needed; without the key every client is allowed" "at least one name is needed" (eq $key "allowed_clients"))) -}}
{{- end -}}
{{- include "switchboard.refuseUsers" (dict "to" $to "at" (printf "%s.%s" $at $key) "list" (ternary list (get $target $key) (eq $key "allowed_clients"))) -}}
{{- end -}}
{{- with $target.dials_in -}}
{{- range $key, $list := . -}}
{{- if not $list -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s.dials_in.%s" $at $key) "is" "at least one name is needed") -}}
{{- end -}}
{{- include "switchboard.refuseUsers" (dict "to" $to "at" (printf "%s.dials_in.%s" $at $key) "list" $list) -}}
{{- end -}}
{{- end -}}
{{- include "switchboard.refuseDuration" (dict "to" $to "at" (printf "%s.limits.lifetime" $at) "text" (dig "limits" "lifetime" nil $target) "positive" true "word" "unlimited") -}}
{{- end -}}
{{- range $section, $limits := default dict $config.limits -}}
{{- range $key := list "download" "upload" -}}
{{- if regexMatch "^0*[1-7] *bit/s$" (dig $key "" (default dict $limits)) -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "limits.%s.%s" $section $key) "is" (printf "must be at least 1 byte (found `%s`)" (get $limits $key))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.refuseUsers" -}}
{{- $to := .to -}}
{{- $at := .at -}}
{{- range $index, $name := default list .list -}}
{{- if has $name (list "system:anonymous" "system:unauthenticated") -}}
{{- include "switchboard.fault" (dict "to" $to "at" (printf "%s[%d]" $at $index) "is" (printf "a request without credentials reaches no target: expected the name of a user or group (found `%s`)" $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What the file says and the pods would not do: `check` knows no pods. */ -}}
{{- define "switchboard.refusePods" -}}
{{- $to := .to -}}
{{- $values := .root.Values -}}
{{- $expected := list (int $values.ports.web.port) -}}
{{- if include "switchboard.websecure" .root -}}{{- $expected = append $expected (int $values.ports.websecure.port) -}}{{- end -}}
{{- $found := list -}}
{{- range include "switchboard.ports" .config | fromYamlArray -}}
{{- $found = append $found (regexFind "[0-9]+$" .address | int) -}}
{{- end -}}
{{- if ne (uniq $found | sortAlpha | join " ") (uniq $expected | sortAlpha | join " ") -}}
{{- include "switchboard.fault" (dict "to" $to "at" "config.listen" "is" (printf "it has the ports %s, and the pods and Services have %s: set ports.web and ports.websecure" (join ", " $found) (join ", " $expected))) -}}
{{- end -}}
{{- $admin := default "0.0.0.0:9090" .config.admin -}}
{{- if or (ne (regexFind "[0-9]+$" $admin | int) (int $values.ports.metrics.port)) (regexMatch "^(127[.]|[[]::1[]])" $admin) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "config.admin" "is" (printf "probes and scrapes reach port %d of the pod's address: set ports.metrics.port" (int $values.ports.metrics.port))) -}}
{{- end -}}
{{- if and (include "switchboard.replicas" .root) (not $values.service.enabled) -}}
{{- include "switchboard.fault" (dict "to" $to "at" "config.anchors.replicas" "is" "`auto` reads the Service of this release: set service.enabled, or give a number") -}}
{{- end -}}
{{- end -}}
