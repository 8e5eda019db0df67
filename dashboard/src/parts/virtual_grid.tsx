/** A grid of cards of equal height, of which only those near the screen exist. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

const GAP = 16;
const MARGIN_ROWS = 2;

export function VirtualGrid<T>(props: {
    items: readonly T[];
    label: string;
    itemHeight: number;
    minWidth: number;
    keyOf: (item: T) => string;
    render: (item: T) => ComponentChildren;
}) {
    const element = useRef<HTMLUListElement>(null);
    const [range, setRange] = useState({ columns: 1, first: 0, last: 24 });
    const rowHeight = props.itemHeight + GAP;
    useLayoutEffect(() => {
        const measure = () => {
            const list = element.current;
            if (!list) return;
            const box = list.getBoundingClientRect();
            const columns = Math.max(1, Math.floor((box.width + GAP) / (Math.min(props.minWidth, box.width) + GAP)));
            const firstRow = Math.max(0, Math.floor(-box.top / rowHeight) - MARGIN_ROWS);
            const rowCount = Math.ceil(innerHeight / rowHeight) + 2 * MARGIN_ROWS + 1;
            const next = { columns, first: firstRow * columns, last: (firstRow + rowCount) * columns };
            setRange((old) => (old.columns === next.columns && old.first === next.first && old.last === next.last ? old : next));
        };
        measure();
        const observer = new ResizeObserver(measure);
        if (element.current) observer.observe(element.current);
        addEventListener("scroll", measure, { passive: true });
        addEventListener("resize", measure); // The height of the window changes no width.
        return () => {
            observer.disconnect();
            removeEventListener("scroll", measure);
            removeEventListener("resize", measure);
        };
    }, [props.items.length, rowHeight, props.minWidth]);
    const rows = Math.ceil(props.items.length / range.columns);
    const shown = props.items.slice(range.first, range.last);
    return (
        <ul ref={element} class="grid" aria-label={props.label} style={{ height: `${Math.max(0, rows * rowHeight - GAP)}px` }}>
            {shown.map((item, i) => {
                const index = range.first + i;
                const column = index % range.columns;
                const style = {
                    top: `${Math.floor(index / range.columns) * rowHeight}px`,
                    left: `calc((100% + ${GAP}px) / ${range.columns} * ${column})`,
                    width: `calc((100% + ${GAP}px) / ${range.columns} - ${GAP}px)`,
                    height: `${props.itemHeight}px`,
                };
                return (
                    <li key={props.keyOf(item)} style={style} aria-setsize={props.items.length} aria-posinset={index + 1}>
                        {props.render(item)}
                    </li>
                );
            })}
        </ul>
    );
}
