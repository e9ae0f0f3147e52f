"""One module for each station of the chain. A check takes a look and returns findings; none of them raises."""
