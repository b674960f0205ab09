# For fairseq/dataclass/utils.py: from Python 3.14 on, the text of Optional[str] is "str | None".
s/= str(field_type)/= re.sub("^(.*) [|] None$", r"typing.Optional[\\1]", str(field_type))/
