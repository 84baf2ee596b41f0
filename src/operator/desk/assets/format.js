// Numbers and times as text. Units are those of the proxy's configuration: KiB, MiB, GiB.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A number of bytes in three digits, such as `1.42 MiB`. */
export function bytes(count) {
  let unit = 0;
  let size = Number(count) || 0;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${size.toFixed(digits)} ${UNITS[unit]}`;
}

/** Bytes a second; a dot where nothing moves, so that busy rows stand out. */
export function rate(perSecond) {
  return perSecond > 0 ? `${bytes(perSecond)}/s` : "·";
}

/** A length of time in its two largest units, such as `2 h 5 m`. */
export function duration(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 && minutes < 10 ? `${minutes} m ${seconds % 60} s` : `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** The time of day, of this computer's zone. */
export function clock(epoch) {
  return new Date(epoch).toLocaleTimeString([], { hour12: false });
}

/** Date and time of day. */
export function moment(epoch) {
  const date = new Date(epoch);
  if (Number.isNaN(date.getTime())) return "";
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()];
  return `${day.map((part) => String(part).padStart(2, "0")).join("-")} ${clock(epoch)}`;
}

/** Returns a peer's text with its invisible characters, and those that change the direction of text, made visible. */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "\ufffd");
}

/** The same for all texts of an answer. */
export function shown(value) {
  if (typeof value === "string") return visible(value);
  if (Array.isArray(value)) return value.map(shown);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, own]) => [visible(name), shown(own)]));
}

/** A count with separators. */
export function count(number) {
  return Number(number).toLocaleString("en");
}

/** `one tunnel`, `2 tunnels`. */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** An address and port as they are written together. */
export function authority(host, port) {
  if (!host) return "";
  return String(host).includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}
