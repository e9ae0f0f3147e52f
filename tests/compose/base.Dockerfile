# Stands for python:3.11-slim: a small Debian with its own Python 3.11 and pip.
FROM hintloop-test/debian
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s /usr/bin/python3.11 /usr/local/bin/python3
COPY pip.conf /etc/pip.conf
CMD ["python3"]
