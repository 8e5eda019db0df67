/** What the browser remembers for this page from one visit to the next. */

export function remembered(key: string): string | null {
    try {
        return localStorage.getItem(key);
    } catch {
        return null; // The browser stores nothing for this page.
    }
}

/** Remember a text; without a place for it, what it is about lasts as long as the page. */
export function remember(key: string, value: string): void {
    try {
        localStorage.setItem(key, value);
    } catch {
        return;
    }
}
