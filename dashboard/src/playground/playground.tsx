/** A form for a model's inputs, and its outputs. */

export function Playground(props: { model: string }) {
    return <p>{props.model}</p>;
}
