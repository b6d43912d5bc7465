// Numbers, times and names as text. Nothing here depends on the page.

const numbers = {};
const number = (digits) => (numbers[digits] ??= new Intl.NumberFormat("en-GB", { maximumFractionDigits: digits }));

export const count = (x) => number(0).format(x);
export const cores = (x) => number(2).format(x);
export const tenths = (x) => number(1).format(x);
export const gib = (x) => `${tenths(x)}\u00a0GiB`;
export const rate = (x) => number(Math.abs(x) < 10 ? 2 : 0).format(x);
export const percent = (x) => (x == null ? "–" : `${number(1).format(100 * x)}\u00a0%`);
export const loss = (x) => (x == null ? "–" : Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 0.001) ? x.toExponential(2) : x.toFixed(4));
export const seconds = (x) => (x == null ? "–" : Math.abs(x) < 60 ? `${x.toFixed(Math.abs(x) < 10 ? 2 : 1)} s` : duration(x));

/** The gain of a decision for its job, before the text of its pause. Negative: the job makes room for others. */
export const worth = (s) => (s < 0 ? `${seconds(-s)} lost, beside` : `${seconds(s)} saved for`);

/** The metrics of an evaluation: `accuracy 0.9340, loss 0.0912`. */
export const metricsText = (metrics) => Object.entries(metrics ?? {}).map(([name, value]) => `${name} ${loss(value)}`).join(", ");

const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

/** A time span in its two largest units, as in `shared/text.py`: `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d`. */
export function duration(s) {
  if (s < 0) return `\u2212${duration(-s)}`;
  const whole = Math.round(s), [unit, name, smaller, below] = UNITS.find(([u]) => whole >= u) ?? [1, "s", 1, ""];
  const rest = below && Math.floor((whole % unit) / smaller);
  return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${below}` : ""}`;
}

const cpuTime = (hours, whole) => (whole < 0.1 ? `${count(hours * 3600)} core-seconds` : `${number(2).format(hours)} CPU-hours`);
/** Both amounts in the unit of the held one. `used`: null if it was not reported. */
export const cpuTimes = (held, used) => `${cpuTime(held, held)} held${used == null ? "" : `, ${cpuTime(used, held)} used`}`;

const pad = (x) => String(x).padStart(2, "0");
const day = (d) => `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;

/** The time of day; with the date if it is not today. */
export function clock(s, withSeconds = true) {
  const d = new Date(s * 1000), now = new Date();
  const time = `${pad(d.getHours())}:${pad(d.getMinutes())}${withSeconds ? `:${pad(d.getSeconds())}` : ""}`;
  return day(d) === day(now) ? time : `${day(d)} ${time}`;
}

/** A job's name, without the default namespace. */
export const jobName = (key) => (key.startsWith("default.") ? key.slice(8) : key.replace(".", "/"));
export const countOf = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
export const size = (d) => (d.ps === 0 && d.workers === 0 ? "no tasks" : `${d.ps} ps, ${countOf(d.workers, "worker")}`);
