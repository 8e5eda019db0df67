/** JSON without losses: integers of 64 bits stay exact, and NaN and Infinity, which the protocol has, are read. */

/** Matches strings, numbers, and the words that JSON does not have. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?(?:Infinity|NaN)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d{16,}$/;

/** Parse JSON; integers beyond 2^53 become bigint. Throws SyntaxError. */
export function parseExact(text: string): unknown {
    const mark = `${Math.random()}:`;
    let isMarked = false;
    const marked = text.replace(TOKENS, (token) => {
        const isNumber = token[0] !== '"' && (INTEGER.test(token) || /[IN]/.test(token));
        isMarked ||= isNumber;
        return isNumber ? `"${mark}${token}"` : token;
    });
    if (!isMarked) return JSON.parse(text);
    return JSON.parse(marked, (_, value: unknown) => {
        if (typeof value !== "string" || !value.startsWith(mark)) return value;
        const number = value.slice(mark.length);
        if (!INTEGER.test(number)) return Number(number);
        return Number.isSafeInteger(Number(number)) ? Number(number) : BigInt(number);
    });
}

/** Write JSON; bigint as a number with all digits. */
export function writeExact(value: unknown, indent = 0): string {
    return write(value, indent, "");
}

function write(value: unknown, indent: number, margin: string): string {
    if (typeof value === "bigint") return value.toString();
    if (value === undefined) return "null";
    if (typeof value !== "object" || value === null) return JSON.stringify(value);
    const parts = Array.isArray(value)
        ? value.map((each) => write(each, indent, margin + " ".repeat(indent)))
        : Object.entries(value)
              .filter(([, each]) => each !== undefined)
              .map(([key, each]) => `${JSON.stringify(key)}: ${write(each, indent, margin + " ".repeat(indent))}`);
    const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
    const isFlat = parts.every((each) => !each.includes("\n")) && parts.join(", ").length + margin.length < 90;
    if (!indent || isFlat || !parts.length) return `${open}${parts.join(", ")}${close}`;
    const inner = `\n${margin}${" ".repeat(indent)}`;
    return `${open}${inner}${parts.join(`,${inner}`)}\n${margin}${close}`;
}
