// Which job is which colour and letter: seven are told apart, and one keeps his as long as he is among them.

const FREE = ["A", "B", "C", "D", "E", "F", "G"];
const given = new Map();

/** Give letters to these jobs; those that are not among them lose theirs. */
export function assign(keys) {
  for (const key of [...given.keys()]) if (!keys.includes(key)) given.delete(key);
  for (const key of keys) {
    if (given.has(key)) continue;
    const taken = new Set(given.values());
    const free = FREE.findIndex((_, number) => !taken.has(number));
    if (free >= 0) given.set(key, free);
  }
}

export const colourOf = (key) => given.get(key);
export const letterOf = (key) => (given.has(key) ? FREE[given.get(key)] : "");
export const classOf = (key) => (given.has(key) ? `k${given.get(key)}` : "rest");
export const fillOf = (key) => (given.has(key) ? `var(--job-${given.get(key)})` : "var(--rest)");
