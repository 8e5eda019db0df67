from naiad.protocol.openai.token_logprobs import openai_logprobs

CHOSEN = {"logprob": -3, "rank": 9, "decoded_token": "é"}
LIKELY = {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
LESS = {"logprob": -1.5, "rank": 2, "decoded_token": None}


def test_chosen_token_is_first_and_others_by_likelihood():
    (found,) = openai_logprobs([{"7": CHOSEN, "1": LESS, "2": LIKELY}], 2)
    assert (found["token"], found["bytes"], found["logprob"]) == ("é", [0xC3, 0xA9], -3)
    assert [(each["token"], each["logprob"]) for each in found["top_logprobs"]] == [("a", -0.5), ("", -1.5)]


def test_client_may_want_no_other_tokens():
    (found,) = openai_logprobs([{"2": LIKELY}], 0)
    assert (found["token"], found["top_logprobs"]) == ("a", [])


def test_form_of_openai_stays():
    tokens = [{"token": "a", "logprob": -1, "top_logprobs": []}]
    assert openai_logprobs(tokens, 3) == tokens


def test_elements_without_tokens_are_empty_ones():
    (found,) = openai_logprobs([{}], 3)
    assert (found["token"], found["top_logprobs"]) == ("", [])
