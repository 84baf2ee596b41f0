// One tunnel or target with all that is known of it.

import { Refused, call } from "./api.js";
import { chart } from "./chart.js";
import { describe } from "./dialogs.js";
import { authority, bytes, duration, moment, plural, rate, visible } from "./format.js";

const at = (id) => document.getElementById(id);

/** The fields of a tunnel that have a line of their own; all others follow as they are. */
const TOLD = new Set(["key", "replica", "active_at", "tunnel_id", "since", "age_ms", "idle_ms", "client.address", "client.port",
  "network.peer.address", "client.software", "user.name", "http.version", "tls.version", "server.address", "server.port",
  "target.namespace", "target.service", "upstream.address", "upstream.software", "upstream.node", "upstream.anchor", "tunnel.resumable", "bytes_sent",
  "bytes_received", "sent_per_second", "received_per_second", "download", "upload", "legs"]);

function limit(one) {
  if (!one) return "";
  const waited = one.waited_ms;
  const own = one.is_own ? ", set by an operator" : "";
  return `${one.rate}${own}; ${waited ? `has waited ${waiting(waited)} for limits` : "no wait so far"}`;
}

const which = (row) => new URLSearchParams({ replica: row.replica, tunnel_id: row.id });

const VERDICTS = {
  client: "The client's side makes it slow.",
  target: "The target's side makes it slow.",
  limit: "A limit makes it slow.",
  proxy: "The proxy makes it slow.",
  nothing: "Nothing that is seen here makes it slow.",
};

const waiting = (milliseconds) => (milliseconds < 1000 ? `${milliseconds} ms` : `${(milliseconds / 1000).toFixed(1)} s`);

/** Fields that this page does not know, of a newer proxy: a nested one as `a.b`. */
function* others(facts, before = "") {
  for (const [name, value] of Object.entries(facts)) {
    if (!before && TOLD.has(name)) continue;
    if (value === null || value === "") continue;
    if (typeof value === "object" && !Array.isArray(value)) yield* others(value, `${before}${name}.`);
    else yield [(before + name).replaceAll("_", " "), Array.isArray(value) ? value.join(", ") : String(value)];
  }
}

/** A TCP connection in one line. */
function leg(one) {
  if (!one) return "";
  const parts = [`round trip ${one.rtt_ms.toFixed(1)} ms`, plural(one.retransmits, "segment") + " sent again"];
  if (one.send_queue) parts.push(`${bytes(one.send_queue)} in its send queue`);
  if (one.delivery_rate) parts.push(`delivers ${rate(one.delivery_rate)}`);
  return parts.join(", ");
}

function linesOfTunnel(row, model, extra) {
  const { facts } = row;
  const peer = facts["network.peer.address"];
  return [
    ["client", authority(row.client, facts["client.port"]) + (peer && peer !== row.client ? ` by ${peer}` : "")],
    ["user", row.user],
    ["client's software", facts["client.software"]],
    ["asked for", authority(facts["server.address"], facts["server.port"])],
    ["target", row.target],
    ["endpoint", facts["upstream.address"] ?? ""],
    ["node", row.node],
    ["anchor", facts["upstream.anchor"]],
    ["target's software", facts["upstream.software"]],
    ["since", `${moment(row.since)}, ${duration(model.now() - row.since)} ago`],
    ["idle", row.isSilent ? "unknown: the replica does not answer" : duration(model.now() - row.activeAt)],
    ["to client", `${bytes(row.sent)}, now ${row.down ? rate(row.down) : "nothing"}`],
    ["from client", `${bytes(row.received)}, now ${row.up ? rate(row.up) : "nothing"}`],
    ["limit to client", limit(facts.download)],
    ["limit from client", limit(facts.upload)],
    ["carried by", facts["http.version"] === "" ? "SSH" : `HTTP/${facts["http.version"]}${facts["tls.version"] ? ` over TLS ${facts["tls.version"]}` : ", in clear"}`],
    ["resumable", facts["tunnel.resumable"] ? "yes: its session outlives it" : "no: its end ends the session"],
    ["replica", row.replica],
    ["tunnel id", row.id],
    ["client's network", leg(extra.legs?.client)],
    ["target's network", leg(extra.legs?.upstream)],
    ...others({ ...facts, ...extra }),
  ];
}

function anchorOf({ address, "user.name": user, since, connections, is_standby: isStandby }) {
  return `${user} at ${address} since ${moment(Date.parse(since))}, ${connections} connected${isStandby ? ", standby" : ""}`;
}

/** The end of a dial in one line. */
function dial(last) {
  if (!last) return "";
  const at = moment(Date.parse(last.at));
  return last.error ? `${last.sentence || last.error} at ${at} (${last.error})` : `connected at ${at}`;
}

function linesOfTarget(row) {
  const { facts } = row;
  const by = facts.cordoned_by ?? [];
  return [
    ["ready endpoints", `${facts.endpoints_ready} of ${facts.endpoints}`],
    ["addresses", row.addresses.join(", ")],
    ...(facts.anchors ?? []).map((anchor) => ["anchor", anchorOf(anchor)]),
    ["last dial", dial(facts.last_dial)],
    ["not confirmed since", facts.unconfirmed_since ? moment(Date.parse(facts.unconfirmed_since)) : ""],
    ...(facts.remarks ?? []).map((remark) => ["remark", visible(remark)]),
    ["tunnels", String(facts.tunnels)],
    ["cordoned", facts.is_cordoned ? "yes, by every replica" : by.length ? `by ${by.join(", ")}` : "no"],
  ];
}

export class Details {
  shown = null;

  constructor({ model, actions, onClose }) {
    Object.assign(this, { model, actions, onClose });
    at("details-close").addEventListener("click", () => this.close());
  }

  /** Opens the details of a row: `kind` is `tunnel` or `target`. */
  open(kind, row) {
    if (this.shown?.key !== row.key) {
      this.shown = { kind, key: row.key, row, extra: {} };
      at("details-diagnosis").hidden = true;
    }
    at("details").hidden = false;
    const title = kind === "tunnel" ? `${row.user || row.client} → ${row.target}` : row.name;
    at("details-title").textContent = title;
    // In a narrow window the details cover the list.
    if (matchMedia("(max-width: 760px)").matches) at("details-title").focus();
    at("details-chart").hidden = kind !== "tunnel";
    this.update();
  }

  /** Shows what has changed. A tunnel that has ended stays until the details are closed. */
  update() {
    if (!this.shown) return;
    const { kind, key } = this.shown;
    const current = kind === "tunnel" ? this.model.tunnels.get(key) : this.model.targets.find((row) => row.key === key);
    const row = current ?? this.shown.row;
    this.shown.row = row;
    this.#buttons(kind, row, Boolean(current));
    at("details-verdict").hidden = Boolean(current);
    if (!current) at("details-verdict").textContent = kind === "tunnel" ? "This tunnel has ended." : "This target has left the allowlist.";
    const lines = kind === "tunnel" ? linesOfTunnel(row, this.model, this.shown.extra) : linesOfTarget(row);
    this.#list(lines.filter(([, value]) => value));
    if (kind === "tunnel") {
      const empty = { down: [], up: [] };
      chart(at("details-chart"), row.history ?? empty, this.model.tick, (most) => (most ? rate(most) : "no traffic"));
    }
  }

  /** Asks for the tunnel's TCP connections, which only its own page of its replica has. */
  async ask() {
    const { shown } = this;
    if (shown?.kind !== "tunnel" || shown.row.isSilent || !this.model.tunnels.has(shown.key)) return;
    try {
      shown.extra = (await call("GET", `/api/tunnel?${which(shown.row)}`)) ?? {};
    } catch (error) {
      // It has ended, or its replica does not answer: both are shown by the list.
      if (!(error instanceof Refused)) throw error;
    }
    if (this.shown === shown) this.update();
  }

  /** Has the replica observe the tunnel for a second, and shows what makes it slow. */
  async diagnose(row) {
    const { shown } = this;
    const place = at("details-diagnosis");
    place.hidden = false;
    place.textContent = "The tunnel is observed for a second…";
    try {
      const found = await call("GET", `/api/diagnosis?${which(row)}`);
      place.textContent = found
        ? [VERDICTS[found.verdict] ?? found.verdict, ...found.evidence].join("\n")
        : "The tunnel has ended, or its replica cannot tell.";
    } catch (error) {
      place.textContent = error.message;
    }
    if (this.shown !== shown) place.hidden = true;
  }

  close() {
    if (!this.shown) return;
    this.shown = null;
    at("details").hidden = true;
    this.onClose();
  }

  /** Replaces the buttons only by other ones, so that a focused button stays. */
  #buttons(kind, row, isThere) {
    const wanted = isThere && !row.isSilent ? this.actions(kind, row) : [];
    const place = at("details-actions");
    if (place.dataset.has !== wanted.map(({ label }) => label).join()) {
      place.dataset.has = wanted.map(({ label }) => label).join();
      place.replaceChildren(...wanted.map(({ label, key, isDangerous }, index) => {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
        if (key) button.setAttribute("aria-keyshortcuts", key);
        button.classList.toggle("dangerous", Boolean(isDangerous));
        button.addEventListener("click", () => this.wanted[index].run());
        return button;
      }));
    }
    this.wanted = wanted;
  }

  /** Changes the texts that differ, so that a selection of text stays. */
  #list(lines) {
    const list = at("details-list");
    const names = [...list.querySelectorAll("dt")].map((term) => term.textContent);
    if (names.join("\n") !== lines.map(([name]) => name).join("\n")) {
      describe(list, lines);
      return;
    }
    list.querySelectorAll("dd").forEach((place, index) => {
      if (place.textContent !== lines[index][1]) place.textContent = lines[index][1];
    });
  }
}
