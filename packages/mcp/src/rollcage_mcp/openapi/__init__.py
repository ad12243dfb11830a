"""Operations of an OpenAPI document as tools, which are proposals until they are approved."""
