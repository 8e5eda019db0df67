"""An Airflow pipeline: each hour, predict the rows of the files that came since the last run.

naiad serve models --model-control-mode=explicit --load-model=prices
export AIRFLOW_CONN_NAIAD_DEFAULT='{"conn_type": "naiad", "host": "localhost", "port": 8000}'
airflow dags test predict_new_files --conf '{"inputs": "s3://houses/in/*.csv", "folder": "s3://houses/out"}'

Inputs and folder may also be paths. The record of the files is `prices.since.json` in the folder. Each run has an
output of its own, named by the run, so that a task that is tried again continues it; a run without new files writes
none. Runs do not overlap, and a run that was missed needs no other one: the next run has its files. It also completes
the output of a run that did not end, which its result names as `earlier_output`.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from naiad.integrations.airflow.operators import NaiadPredictOperator

with DAG(
    "predict_new_files",
    schedule="5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "inputs": Param("s3://houses/in/*.csv", type="string"),
        "folder": Param("s3://houses/out", type="string"),
    },
) as dag:
    NaiadPredictOperator(
        task_id="predict",
        model="prices",
        inputs="{{ params.inputs }}",
        output_path="{{ params.folder }}/{{ run_id | replace(':', '-') | replace('+', '-') }}.jsonl",
        columns={"area": "features", "rooms": "features"},
        since="last",
        retries=3,
    )
