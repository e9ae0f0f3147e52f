# Stands for python:3.11-slim: a small Debian, the interpreter that runs this check, and its pip.
FROM hintloop-test/debian
ADD python.tar /usr/local/
RUN ldconfig && ln -s python3.11 /usr/local/bin/python && ln -s python3.11 /usr/local/bin/python3 && \
    python -m ensurepip >/dev/null
COPY pip.conf /etc/pip.conf
CMD ["python3"]
