"""How the embedded demo model was made: text, vocabulary, training, export. No part of the product."""
